// SPDX-License-Identifier: Apache-2.0
// Atomic operations on global memory, and flags between CTAs.
#pragma once

#include "device/ptx/target.cuh"

namespace octavo::ptx {

// red.relaxed.gpu.global.max.u32;  *p becomes the maximum of its bits and x, as unsigned integers
OCTAVO_PTX void atomic_max(float* p, u32 x OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
});

// red.release.gpu.global.add.u32;  adds to a flag. A thread of any CTA whose ld_acquire reads the
// sum sees the memory accesses that happened before this.
OCTAVO_PTX void red_release_add(u32* p, u32 x OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
});
// ld.acquire.gpu.global.u32;  reads a flag. CTAs with lower indices start first, so a CTA may wait
// for them in a loop of this load.
OCTAVO_PTX u32 ld_acquire(const u32* p OCTAVO_AND_SITE) OCTAVO_BODY({
  u32 x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
  return x;
});

}  // namespace octavo::ptx
