// What the processor and the operating system offer, asked once.
#pragma once

namespace specruntime {

struct Processor {
    bool amd = false;
    bool avx2 = false;         // with FMA and F16C
    bool avx_vnni = false;     // vpdpbusd in its VEX encoding
    bool avx512_vnni = false;  // with AVX512F, BW, DQ, VL
    bool amx_int8 = false;     // and the system lets this process use the tiles
    bool neon_dotprod = false;
    bool neon_i8mm = false;
};

const Processor& this_processor();

}  // namespace specruntime
