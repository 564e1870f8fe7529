// Who a thread is, and how the threads of a CTA or a warp meet.
#pragma once

#include "device/ptx/target.cuh"

namespace octavo::ptx {

OCTAVO_DEVICE u32 thread_index() { return threadIdx.x; }
OCTAVO_DEVICE int block_index_x() { return static_cast<int>(blockIdx.x); }
OCTAVO_DEVICE u32 lane_index() { return thread_index() % 32; }
// The same in all lanes, and known to the compiler as such: branches on it stay uniform.
OCTAVO_DEVICE u32 warp_index() { return __shfl_sync(0xffffffffu, thread_index() / 32, 0); }

// bar.sync 0;  all threads of the CTA
OCTAVO_DEVICE void cta_sync() { asm volatile("bar.sync 0;" ::: "memory"); }

// bar.sync id, count;  `count` threads, a multiple of 32
OCTAVO_DEVICE void named_barrier_sync(int id, int count) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory");
}

// shfl.sync.bfly.b32;  the value of lane ^ mask
OCTAVO_DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }

// vote.sync.any.pred;  whether any lane of the warp says so
OCTAVO_DEVICE bool warp_any(bool x) { return __any_sync(0xffffffffu, x); }

}  // namespace octavo::ptx
