// Sizes of a packed matrix. Included by files compiled for the baseline only.
#pragma once

#include "kernels.h"

namespace specruntime {

/// For a matrix that check_matrix accepts.
Geometry geometry_of(const PackedMatrix& matrix);

}  // namespace specruntime
