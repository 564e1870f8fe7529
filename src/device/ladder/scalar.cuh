// SPDX-License-Identifier: Apache-2.0
// Rung 1, scalar: one thread computes one row of O and reads K and V from global memory.
//
// The new idea is the online softmax. The weights of a row are exp(s_j - max s), and the maximum is
// known only after the last key. Instead of storing the scores, the thread carries three values,
// which are always right for the keys so far:
//
//   row_max   the largest score so far
//   row_sum   sum of exp(s_j - row_max)
//   o         sum of exp(s_j - row_max) v_j
//
// A larger score rescales what has been summed by exp(old row_max - new row_max). At the end
// o / row_sum is the result, and no score was ever stored.
//
// The costs: one row of K and one of V is loaded for 4 * head_dim operations per thread. The lanes
// of a warp read the same row, so a load is one transaction of 16 bytes, where it could be 512.
#pragma once

#include "device/ladder/problem.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/vector_memory.cuh"
#include "device/ptx/wgmma.cuh"

namespace octavo::ladder {

template <int kHeadDim>
struct Scalar {
  static constexpr int kThreads = 128, kRows = 128, kKeys = 1;
  static constexpr int kSmemBytes = 0;
  static constexpr int kChunks = kHeadDim / 8;  // of 16 bytes in a row

  // The row's q, in pairs: as FP32, q and o together would not fit into 255 registers.
  static OCTAVO_DEVICE void load_q(u32 (&q)[kHeadDim / 2], const u16* from) {
    OCTAVO_UNROLL
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      u32 x[4];
      ptx::load_global_b128(from + chunk * 8, x);
      OCTAVO_UNROLL
      for (int i = 0; i < 4; ++i) q[chunk * 4 + i] = x[i];
    }
  }

  // The product of q and one row of K.
  static OCTAVO_DEVICE float dot(const u32 (&q)[kHeadDim / 2], const u16* k) {
    float sum = 0;
    OCTAVO_UNROLL
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      u32 x[4];
      ptx::load_global_b128(k + chunk * 8, x);
      OCTAVO_UNROLL
      for (int i = 0; i < 4; ++i) {
        float q0, q1, k0, k1;
        ptx::f32_from_f16x2(q0, q1, q[chunk * 4 + i]);
        ptx::f32_from_f16x2(k0, k1, x[i]);
        sum = ptx::fused_multiply_add(q0, k0, sum);
        sum = ptx::fused_multiply_add(q1, k1, sum);
      }
    }
    return sum;
  }

  // o = o * correction + weight * v
  static OCTAVO_DEVICE void add_v(float (&o)[kHeadDim], float correction, float weight,
                                  const u16* v) {
    OCTAVO_UNROLL
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      u32 x[4];
      ptx::load_global_b128(v + chunk * 8, x);
      OCTAVO_UNROLL
      for (int i = 0; i < 4; ++i) {
        float v0, v1;
        ptx::f32_from_f16x2(v0, v1, x[i]);
        float* const pair = o + chunk * 8 + i * 2;
        pair[0] = ptx::fused_multiply_add(weight, v0, pair[0] * correction);
        pair[1] = ptx::fused_multiply_add(weight, v1, pair[1] * correction);
      }
    }
  }

  static OCTAVO_DEVICE void run(const Params& p) {
    const RowTile<kRows> tile(p);
    const i32 row = tile.first_row + static_cast<i32>(ptx::thread_index());
    if (ptx::mask_term(row >= p.seqlen_q, false)) return;
    const i64 q_row = i64{tile.head} * p.seqlen_q + row;
    const i64 first_key = i64{tile.head} * p.seqlen_kv;

    u32 q[kHeadDim / 2];
    load_q(q, p.q + q_row * kHeadDim);
    float o[kHeadDim] = {};
    float row_max = -kInfinity, row_sum = 0;
    const i32 keys = visible_keys(p, row);
    OCTAVO_ROLLED
    for (i32 key = 0; key < keys; ++key) {
      const i64 at = (first_key + key) * kHeadDim;
      ptx::pin(q);  // or the compiler keeps q as FP32 as well, and spills at head_dim 128
      const float score = dot(q, p.k + at) * p.scale_log2;
      const float new_max = ptx::max_f32(row_max, score);
      const float correction = ptx::exp2_approx(row_max - new_max);  // 0 for the first key
      const float weight = ptx::exp2_approx(score - new_max);
      row_max = new_max;
      row_sum = ptx::fused_multiply_add(row_sum, correction, weight);
      add_v(o, correction, weight, p.v + at);
    }
    const float inverse = 1.0f / row_sum;
    OCTAVO_UNROLL
    for (int pair = 0; pair < kHeadDim / 2; ++pair)
      ptx::store_global_b32(p.o + q_row * kHeadDim + pair * 2,
                            ptx::f16x2_from_f32(o[pair * 2] * inverse, o[pair * 2 + 1] * inverse));
  }
};

template <int kHeadDim>
OCTAVO_KERNEL(Scalar<kHeadDim>::kThreads, 1)
scalar(const OCTAVO_GRID_CONSTANT Params p) {
  Scalar<kHeadDim>::run(p);
}

}  // namespace octavo::ladder
