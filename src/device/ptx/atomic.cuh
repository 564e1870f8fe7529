// Global memory that many threads change at once.
#pragma once

#include "device/ptx/target.cuh"

namespace octavo::ptx {

// red.relaxed.gpu.global.max.u32;  the larger of what is there, by its bits, and x
OCTAVO_PTX void atomic_max(float* p, u32 x OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
});

}  // namespace octavo::ptx
