#include "processor.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__) || defined(_M_X64)
#define SPECRUNTIME_X86 1
#if defined(_MSC_VER)
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif
#endif
#if defined(__APPLE__) && defined(__aarch64__)
#include <sys/sysctl.h>
#endif
#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#endif

namespace specruntime {
namespace {

#if defined(SPECRUNTIME_X86)

struct Registers {
    uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
    Registers r;
#if defined(_MSC_VER)
    int words[4];
    __cpuidex(words, static_cast<int>(leaf), static_cast<int>(subleaf));
    r.eax = static_cast<uint32_t>(words[0]), r.ebx = static_cast<uint32_t>(words[1]);
    r.ecx = static_cast<uint32_t>(words[2]), r.edx = static_cast<uint32_t>(words[3]);
#else
    __cpuid_count(leaf, subleaf, r.eax, r.ebx, r.ecx, r.edx);
#endif
    return r;
}

/// Which register states the operating system saves (XCR0).
uint64_t saved_states() {
#if defined(_MSC_VER)
    return _xgetbv(0);
#else
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<uint64_t>(high) << 32 | low;
#endif
}

bool bit(uint64_t word, int index) { return (word >> index & 1) != 0; }

/// Linux lends the tile registers to a process that asks for them.
bool tiles_permitted() {
#if defined(__linux__) && defined(SYS_arch_prctl)
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
    return false;
#endif
}

Processor ask() {
    Processor processor;
    const Registers vendor = cpuid(0, 0);
    processor.amd = vendor.ebx == 0x68747541;  // "Auth", of AuthenticAMD
    const Registers one = cpuid(1, 0);
    if (vendor.eax < 7 || !bit(one.ecx, 27)) return processor;  // 27: the system uses XSAVE
    const uint64_t states = saved_states();
    const bool ymm = (states & 0x6) == 0x6, zmm = ymm && (states & 0xe0) == 0xe0, tiles = (states & 0x60000) == 0x60000;
    const Registers seven = cpuid(7, 0);
    const Registers more = seven.eax >= 1 ? cpuid(7, 1) : Registers();
    const bool fma = bit(one.ecx, 12), f16c = bit(one.ecx, 29);
    processor.avx2 = ymm && bit(seven.ebx, 5) && fma && f16c;
    processor.avx_vnni = processor.avx2 && bit(more.eax, 4);
    const bool f = bit(seven.ebx, 16), dq = bit(seven.ebx, 17), bw = bit(seven.ebx, 30), vl = bit(seven.ebx, 31);
    processor.avx512_vnni = processor.avx2 && zmm && f && dq && bw && vl && bit(seven.ecx, 11);
    const bool amx_tile = bit(seven.edx, 24), amx_int8 = bit(seven.edx, 25);
    processor.amx_int8 = processor.avx512_vnni && tiles && amx_tile && amx_int8 && tiles_permitted();
    return processor;
}

#elif defined(__aarch64__) || defined(_M_ARM64)

#if defined(__APPLE__)
bool feature(const char* name) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}
#endif

Processor ask() {
    Processor processor;
#if defined(__linux__)
    processor.neon_dotprod = (getauxval(AT_HWCAP) >> 20 & 1) != 0;  // HWCAP_ASIMDDP
    processor.neon_i8mm = (getauxval(AT_HWCAP2) >> 13 & 1) != 0;    // HWCAP2_I8MM
#elif defined(__APPLE__)
    processor.neon_dotprod = feature("hw.optional.arm.FEAT_DotProd");
    processor.neon_i8mm = feature("hw.optional.arm.FEAT_I8MM");
#elif defined(_WIN32)
    processor.neon_dotprod = IsProcessorFeaturePresent(43) != 0;  // PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE
    processor.neon_i8mm = IsProcessorFeaturePresent(66) != 0;     // PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE
#endif
    return processor;
}

#else

Processor ask() { return {}; }

#endif

}  // namespace

const Processor& this_processor() {
    static const Processor processor = ask();
    return processor;
}

}  // namespace specruntime
