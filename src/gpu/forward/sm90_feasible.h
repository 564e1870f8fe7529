// Checks whether a chip can run a configuration of the Hopper forward kernel.
#pragma once

#include "config/sm90_forward.h"
#include "gpu/forward/sm80_feasible.h"
#include "octavo/octavo.hpp"

namespace octavo {

// A pure function, used by chooser, tuner and tests. `arch` and `smem_bytes` are the chip's; only
// sm_90 has these instructions.
Status feasible(const Sm90ForwardConfig& config, int arch, int smem_bytes);
inline Status feasible(const Sm90ForwardConfig& config, int arch) {
  return feasible(config, arch, max_smem_bytes(arch));
}

}  // namespace octavo
