// Which configurations of the sm80 forward kernel a chip can run, and why not the others.
#pragma once

#include "config/sm80_forward.h"
#include "octavo/octavo.hpp"

namespace octavo {

// Shared memory one CTA may ask for, by compute capability: 163 KB on sm_80 and sm_87, 99 KB on
// sm_86, sm_89 and sm_12x, 227 KB on sm_90 and sm_10x. 99 KB, the least of all, for what is not
// known.
int max_smem_bytes(int arch);

// Pure: the same answer to chooser, tuner and tests. `arch` and `smem_bytes` are the chip's; a
// config for an older chip runs on a newer one.
Status feasible(const Sm80ForwardConfig& config, int arch, int smem_bytes);
inline Status feasible(const Sm80ForwardConfig& config, int arch) {
  return feasible(config, arch, max_smem_bytes(arch));
}

}  // namespace octavo
