// SPDX-License-Identifier: Apache-2.0
// Computes the gradients of the attention sinks from the row statistics:
//
//   dsink = - sum over the rows of a head, of all sequences, of exp(sink - lse) * delta
//
// A CTA computes one head. Each thread sums every kThreads-th row, then the sums of the threads are
// added. The order is fixed, so the bits are the same in every run. Rows without keys have lse_log2
// = +infinity and add 0.
//
//   shared memory    what
//   sums             a float for each warp
#pragma once

#include "config/row_stats.h"
#include "device/backward/row_stats.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"

namespace octavo {

struct SinkGradientParams {
  const float* lse_log2 = nullptr;  // [sequence][head_q][rows], as row_stats writes them
  const float* delta = nullptr;
  i32 rows = 0;
  i32 heads_q = 0;
  i32 sequences = 0;
  const float* sinks = nullptr;  // one per query head, in natural units
  float* dsinks = nullptr;
};

namespace row_stats {

inline constexpr int kSinkSmemBytes = kThreads / 32 * 4;

OCTAVO_DEVICE float add_warp(float sum) {
  OCTAVO_UNROLL
  for (int mask = 1; mask < 32; mask *= 2) sum += ptx::shuffle_xor(sum, mask);
  return sum;
}

template <class Config>
OCTAVO_KERNEL(kThreads, 1)
sink_gradients(const OCTAVO_GRID_CONSTANT SinkGradientParams p) {
  const i32 head = ptx::block_index_x();
  const i32 thread = static_cast<i32>(ptx::thread_index());
  const float sink_log2 = ptx::load_global_f32(p.sinks + head) * kLog2E;
  float sum = 0;
  for (i32 sequence = 0; sequence < p.sequences; ++sequence) {
    const i64 first = (static_cast<i64>(sequence) * p.heads_q + head) * p.rows;
    for (i32 row = thread; row < p.rows; row += kThreads) {
      const float weight =
          ptx::exp2_approx(sink_log2 - ptx::load_global_f32(p.lse_log2 + first + row));
      sum = ptx::fused_multiply_add(-weight, ptx::load_global_f32(p.delta + first + row), sum);
    }
  }
  sum = add_warp(sum);
  const u32 slot = ptx::shared_base() + ptx::warp_index() * 4;
  if (ptx::lane_index() == 0) ptx::store_shared_b32(slot, __builtin_bit_cast(u32, sum));
  ptx::cta_sync();
  if (thread != 0) return;
  float total = 0;
  OCTAVO_UNROLL
  for (u32 warp = 0; warp < kThreads / 32; ++warp)
    total += ptx::load_shared_f32(ptx::shared_base() + warp * 4);
  ptx::store_global_f32(p.dsinks + head, total);
}

}  // namespace row_stats
}  // namespace octavo
