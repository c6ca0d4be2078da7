// Which instruction-set path runs on this processor. The choice is a table over what the processor says of itself,
// never a timing, so two runs on one host take the same path. All paths of one weight format give equal bits.
#pragma once

#include <cstddef>
#include <string>

namespace specruntime {

struct MatmulKernels;     // matmul/kernels.h
struct AttentionKernels;  // attention/kernels.h

/// One path: a name for logs and for SPECRUNTIME_KERNELS, and its functions.
struct Path {
    const char* name;
    const MatmulKernels* matmul;
    const AttentionKernels* attention;
};

/// All path names this library knows on any architecture, in the order in which they are preferred:
/// amx, avx512, avx512vnni, avxvnni, avx2, neon_i8mm, neon_dotprod.
const char* const* path_names(size_t* count);

/// The path called `name`; with "" or "auto" the one of the table for this processor. Where it is not to be had
/// (unknown name, not compiled in, the processor or the system lacks it) nullptr, and *error says why in one line.
/// "off" is no path: nullptr and an error too, so a caller looks for it first.
const Path* select_path(const std::string& name, std::string* error);

/// Whether this host runs the path called `name`.
bool path_available(const std::string& name);

}  // namespace specruntime
