// Checks whether a chip can run a configuration of the sm80 forward kernel.
#pragma once

#include "config/sm80_forward.h"
#include "octavo/octavo.hpp"

namespace octavo {

// The largest shared memory of a CTA: 163 KB on sm_80 and sm_87, 99 KB on sm_86, sm_89 and sm_12x,
// 227 KB on sm_90 and sm_10x. An unknown chip gets the smallest, 99 KB.
int max_smem_bytes(int arch);

// A pure function, used by chooser, tuner and tests. `arch` and `smem_bytes` are the chip's; a
// configuration for an older chip runs on a newer one.
Status feasible(const Sm80ForwardConfig& config, int arch, int smem_bytes);
inline Status feasible(const Sm80ForwardConfig& config, int arch) {
  return feasible(config, arch, max_smem_bytes(arch));
}

}  // namespace octavo
