// How device code is spelled for each compiler that sees it.
#pragma once

#include "config/portable.h"

#if defined(__CUDACC__)
#define OCTAVO_DEVICE __device__ __forceinline__
#define OCTAVO_UNROLL _Pragma("unroll")
#define OCTAVO_KERNEL(max_threads, min_blocks) \
  __global__ void __launch_bounds__(max_threads, min_blocks)
#define OCTAVO_GRID_CONSTANT __grid_constant__
#else
#define OCTAVO_DEVICE inline
#define OCTAVO_UNROLL
#endif
