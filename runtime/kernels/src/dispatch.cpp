#include "dispatch.h"

#include <cstring>

#include "processor.h"

namespace specruntime {

#define SPECRUNTIME_PATHS(entry) \
    entry(amx) entry(avx512) entry(avx512vnni) entry(avxvnni) entry(avx2) entry(neon_i8mm) entry(neon_dotprod)

#define SPECRUNTIME_DECLARE(name) extern const Path path_##name;
SPECRUNTIME_PATHS(SPECRUNTIME_DECLARE)
#undef SPECRUNTIME_DECLARE

namespace {

struct Entry {
    const char* name;
    const Path* path;  // nullptr: not compiled in
    bool (*runs)(const Processor& processor);
};

// The build says which paths it has (SPECRUNTIME_HAS_...), as compiler and architecture allow.
#if defined(SPECRUNTIME_HAS_AMX)
constexpr const Path* kAmx = &path_amx;
#else
constexpr const Path* kAmx = nullptr;
#endif
#if defined(SPECRUNTIME_HAS_AVX512)
constexpr const Path* kAvx512 = &path_avx512;
#else
constexpr const Path* kAvx512 = nullptr;
#endif
#if defined(SPECRUNTIME_HAS_AVX512VNNI)
constexpr const Path* kAvx512Vnni = &path_avx512vnni;
#else
constexpr const Path* kAvx512Vnni = nullptr;
#endif
#if defined(SPECRUNTIME_HAS_AVXVNNI)
constexpr const Path* kAvxVnni = &path_avxvnni;
#else
constexpr const Path* kAvxVnni = nullptr;
#endif
#if defined(SPECRUNTIME_HAS_AVX2)
constexpr const Path* kAvx2 = &path_avx2;
#else
constexpr const Path* kAvx2 = nullptr;
#endif
#if defined(SPECRUNTIME_HAS_NEON_I8MM)
constexpr const Path* kNeonI8mm = &path_neon_i8mm;
#else
constexpr const Path* kNeonI8mm = nullptr;
#endif
#if defined(SPECRUNTIME_HAS_NEON_DOTPROD)
constexpr const Path* kNeonDotprod = &path_neon_dotprod;
#else
constexpr const Path* kNeonDotprod = nullptr;
#endif

const Entry kEntries[] = {
    {"amx", kAmx, [](const Processor& p) { return p.avx512_vnni && p.amx_int8; }},
    {"avx512", kAvx512, [](const Processor& p) { return p.avx512_vnni; }},
    {"avx512vnni", kAvx512Vnni, [](const Processor& p) { return p.avx512_vnni; }},
    {"avxvnni", kAvxVnni, [](const Processor& p) { return p.avx2 && p.avx_vnni; }},
    {"avx2", kAvx2, [](const Processor& p) { return p.avx2; }},
    {"neon_i8mm", kNeonI8mm, [](const Processor& p) { return p.neon_dotprod && p.neon_i8mm; }},
    {"neon_dotprod", kNeonDotprod, [](const Processor& p) { return p.neon_dotprod; }},
};
constexpr size_t kCount = sizeof kEntries / sizeof kEntries[0];

bool available(const Entry& entry) { return entry.path != nullptr && entry.runs(this_processor()); }

/// AMD's 512-bit products and sums run at less than half the rate of 256-bit ones (measured on Zen 5: 0.70 against 1.99
/// a cycle), so there the paths of 512 bits are taken only where they are asked for.
bool preferred(const Entry& entry) {
    const bool wide = entry.path == kAmx || entry.path == kAvx512;
    return !(wide && this_processor().amd);
}

std::string names() {
    std::string all;
    for (const Entry& entry : kEntries) all += (all.empty() ? "" : ", ") + std::string(entry.name);
    return all;
}

}  // namespace

const char* const* path_names(size_t* count) {
    static const char* const all[kCount] = {kEntries[0].name, kEntries[1].name, kEntries[2].name, kEntries[3].name,
                                            kEntries[4].name, kEntries[5].name, kEntries[6].name};
    *count = kCount;
    return all;
}

const Path* select_path(const std::string& name, std::string* error) {
    if (name.empty() || name == "auto") {
        for (const Entry& entry : kEntries) {
            if (available(entry) && preferred(entry)) return entry.path;
        }
        *error = "this processor has none of the instruction sets of the kernels: " + names();
        return nullptr;
    }
    for (const Entry& entry : kEntries) {
        if (name != entry.name) continue;
        if (available(entry)) return entry.path;
        *error = entry.path == nullptr ? "this library was built without the path " + name
                                       : "this processor or system does not run the path " + name;
        return nullptr;
    }
    *error = "there is no path called " + name + ": choose one of " + names();
    return nullptr;
}

bool path_available(const std::string& name) {
    std::string error;
    return select_path(name, &error) != nullptr;
}

}  // namespace specruntime
