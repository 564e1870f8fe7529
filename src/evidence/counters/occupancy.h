// SPDX-License-Identifier: Apache-2.0
// Theoretical occupancy of a kernel, from the resources of a block.
#pragma once

#include <optional>

#include "octavo/kernels.hpp"

namespace octavo::evidence {

// The occupancy in percent of the warps that an SM can hold. None for a kernel without code, for an
// unknown chip, or if a block does not fit.
std::optional<double> occupancy_pct(const KernelInfo& kernel);

}  // namespace octavo::evidence
