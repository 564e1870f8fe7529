// SPDX-License-Identifier: Apache-2.0
// L2 eviction policies for loads.
#pragma once

#include "device/ptx/target.cuh"

namespace octavo::ptx {

// createpolicy.fractional.L2::evict_first.b64 policy, 1.0;  for data that is read once
OCTAVO_PTX u64 l2_evict_first() OCTAVO_BODY({
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
});
// createpolicy.fractional.L2::evict_last.b64 policy, 1.0;  for data that other CTAs read again
OCTAVO_PTX u64 l2_evict_last() OCTAVO_BODY({
  u64 policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
});

}  // namespace octavo::ptx
