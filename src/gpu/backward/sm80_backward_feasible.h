// Checks whether a chip can run a configuration of the sm80 backward kernel.
#pragma once

#include "config/sm80_backward.h"
#include "octavo/octavo.hpp"

namespace octavo {

// A pure function. `arch` and `smem_bytes` are the chip's; a configuration for an older chip runs
// on a newer one.
Status feasible(const Sm80BackwardConfig& config, int arch, int smem_bytes);

}  // namespace octavo
