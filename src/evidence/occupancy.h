// How many of an SM's warps a kernel's blocks can fill, by what a block takes.
#pragma once

#include <optional>

#include "octavo/kernels.hpp"

namespace octavo::evidence {

// Percent of the warps an SM holds. None for a kernel without code, of a chip that is not known, or
// that does not fit.
std::optional<double> occupancy_pct(const KernelInfo& kernel);

}  // namespace octavo::evidence
