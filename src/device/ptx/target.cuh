// SPDX-License-Identifier: Apache-2.0
// Macros that let nvcc, NVRTC and g++ compile the same device code.
//
// A wrapper of device/ptx is its instruction under nvcc and NVRTC. Under g++ it is a declaration
// that the emulator defines, and it also receives the line it was called from (its site).
//
//   OCTAVO_PTX u32 f(u32 x OCTAVO_AND_SITE) OCTAVO_BODY({ asm volatile(...); });
//
// A wrapper that accesses memory or synchronises threads takes the site; arithmetic does not. A
// function that takes a site passes it on as OCTAVO_SAME_SITE. The emulator instantiates templates
// (whose argument must be an immediate) for the values that kernels use.
#pragma once

#include "config/portable.h"

#if defined(__CUDACC__)
#define OCTAVO_DEVICE __device__ __forceinline__
#define OCTAVO_UNROLL _Pragma("unroll")
#define OCTAVO_ROLLED _Pragma("unroll 1")
#define OCTAVO_PRAGMA(text) _Pragma(#text)
#define OCTAVO_UNROLL_BY(n) OCTAVO_PRAGMA(unroll n)
#define OCTAVO_KERNEL(max_threads, min_blocks) \
  __global__ void __launch_bounds__(max_threads, min_blocks)
#define OCTAVO_GRID_CONSTANT __grid_constant__
#define OCTAVO_PTX __device__ __forceinline__
#define OCTAVO_BODY(...) __VA_ARGS__
#define OCTAVO_SITE
#define OCTAVO_AND_SITE
#define OCTAVO_SAME_SITE
#define OCTAVO_AND_SAME_SITE
#else
#define OCTAVO_DEVICE inline
#define OCTAVO_UNROLL
#define OCTAVO_ROLLED
#define OCTAVO_UNROLL_BY(n)
#define OCTAVO_KERNEL(max_threads, min_blocks) inline void
#define OCTAVO_GRID_CONSTANT
#define OCTAVO_PTX
#define OCTAVO_BODY(...)
#define OCTAVO_SITE ::octavo::Site site = ::octavo::Site::here()
#define OCTAVO_AND_SITE , OCTAVO_SITE
#define OCTAVO_SAME_SITE site
#define OCTAVO_AND_SAME_SITE , site

namespace octavo {

// A line of device code.
struct Site {
  const char* file = "";
  int line = 0;

  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

}  // namespace octavo
#endif
