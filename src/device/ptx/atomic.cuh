// Atomic operations on global memory.
#pragma once

#include "device/ptx/target.cuh"

namespace octavo::ptx {

// red.relaxed.gpu.global.max.u32;  *p becomes the maximum of its bits and x, as unsigned integers
OCTAVO_PTX void atomic_max(float* p, u32 x OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
});

}  // namespace octavo::ptx
