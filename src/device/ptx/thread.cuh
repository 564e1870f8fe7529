// SPDX-License-Identifier: Apache-2.0
// Thread indices and synchronisation within a CTA or a warp.
#pragma once

#include "device/ptx/target.cuh"

namespace octavo::ptx {

OCTAVO_PTX u32 thread_index() OCTAVO_BODY({ return threadIdx.x; });
OCTAVO_PTX int block_index_x() OCTAVO_BODY({ return static_cast<int>(blockIdx.x); });
OCTAVO_PTX int grid_size_x() OCTAVO_BODY({ return static_cast<int>(gridDim.x); });
OCTAVO_DEVICE u32 lane_index() { return thread_index() % 32; }
// Known to the compiler to be the same in all lanes, so that branches on it stay uniform.
OCTAVO_PTX u32 warp_index(OCTAVO_SITE)
    OCTAVO_BODY({ return __shfl_sync(0xffffffffu, thread_index() / 32, 0); });

// bar.sync 0;  all threads of the CTA
OCTAVO_PTX void cta_sync(OCTAVO_SITE) OCTAVO_BODY({ asm volatile("bar.sync 0;" ::: "memory"); });

// bar.sync id, count;  `count` threads, a multiple of 32
OCTAVO_PTX void named_barrier_sync(int id, int count OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory");
});

// shfl.sync.bfly.b32;  the value of lane ^ mask
OCTAVO_PTX float shuffle_xor(float x, int mask OCTAVO_AND_SITE)
    OCTAVO_BODY({ return __shfl_xor_sync(0xffffffffu, x, mask); });
OCTAVO_PTX i32 shuffle_xor(i32 x, int mask OCTAVO_AND_SITE)
    OCTAVO_BODY({ return __shfl_xor_sync(0xffffffffu, x, mask); });

// vote.sync.any.pred;  whether x is true in any lane of the warp
OCTAVO_PTX bool warp_any(bool x OCTAVO_AND_SITE)
    OCTAVO_BODY({ return __any_sync(0xffffffffu, x); });

}  // namespace octavo::ptx
