// SPDX-License-Identifier: Apache-2.0
// Rung 2, tiled: a CTA shares blocks of K and V in shared memory, and each thread computes a small
// square of the scores from registers.
//
// The new idea is reuse. Rung 1 loads a row of K for every row of Q. Here 32 rows of Q share each
// loaded row of K and of V, so global memory is read 32 times less. Inside the CTA a thread holds
// 4 rows x 4 keys of S: eight loads from shared memory feed sixteen multiply-adds, not one.
//
//   row group i of 8       rows 4i to 4i+3; its 16 threads hold whole rows of S
//   column group c of 16   keys c, c+16, c+32, c+48 of S; columns c, c+16, ... of O
//   thread (i, c)          4 x 4 of S, 4 x head_dim / 16 of O
//
//   shared memory   what                     floats in a row   bytes at head_dim 64
//   q               32 rows                  head_dim + 1      8320
//   k, v            64 keys each             head_dim + 1      16640 each
//   p               32 rows of weights       64 + 4            8704
//
// The rows are longer than their data so that lanes which read the same column of different rows
// touch different banks. For the same reason the even columns of a row lie before its odd ones: a
// lane loads two neighbouring columns at once, and 32 lanes store 32 neighbouring floats twice. The
// order does not matter to q k^T; O is put back in order when it is stored.
//
//   barrier     before it                       after it
//   cta_sync    every warp has used K, V        the next block may be written
//   cta_sync    the block is written            every warp may read it
//   warp_sync   the weights are written         the 16 threads of the row group may read them
#pragma once

#include "device/ladder/problem.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/vector_memory.cuh"
#include "device/ptx/warpgroup.cuh"

namespace octavo::ladder {

template <int kHeadDim>
struct Tiled {
  static constexpr int kThreads = 128, kRows = 32, kKeys = 64;
  static constexpr u32 kGroups = 16;              // threads that share a row
  static constexpr int kColumns = kHeadDim / 16;  // of O in a thread
  static constexpr u32 kStride = kHeadDim + 1;    // of Q, K and V, in floats
  static constexpr u32 kPStride = kKeys + 4;
  static constexpr u32 kQ = 0, kK = kRows * kStride * 4, kV = kK + kKeys * kStride * 4,
                       kP = kV + kKeys * kStride * 4, kSmemBytes = kP + kRows * kPStride * 4;

  static OCTAVO_DEVICE u32 at(u32 array, u32 stride, u32 row, u32 column) {
    return ptx::shared_base() + array + (row * stride + column) * 4;
  }

  // `count` rows into shared memory as FP32, even columns first; rows from `exist` on become zeros.
  static OCTAVO_DEVICE void load_rows(u32 array, const u16* from, int count, i32 exist) {
    constexpr u32 kPairs = kHeadDim / 2;
    OCTAVO_UNROLL_BY(8)
    for (u32 i = ptx::thread_index(); i < static_cast<u32>(count) * kPairs; i += kThreads) {
      const u32 row = i / kPairs, pair = i % kPairs;
      float x0 = 0, x1 = 0;
      if (static_cast<i32>(row) < exist)
        ptx::f32_from_f16x2(x0, x1, ptx::load_global_b32(from + row * kHeadDim + pair * 2));
      ptx::store_shared_f32(at(array, kStride, row, pair), x0);
      ptx::store_shared_f32(at(array, kStride, row, kPairs + pair), x1);
    }
  }

  // The 4 x 4 scores of this thread: s[i][j] is row 4 * row_group + i, key 16 * j + column_group.
  static OCTAVO_DEVICE void multiply_qk(float (&s)[4][4], u32 row_group, u32 column_group) {
    OCTAVO_UNROLL_BY(4)
    for (u32 d = 0; d < kHeadDim; ++d) {
      float q[4], k[4];
      OCTAVO_UNROLL
      for (u32 i = 0; i < 4; ++i) {
        q[i] = ptx::load_shared_f32(at(kQ, kStride, row_group * 4 + i, d));
        k[i] = ptx::load_shared_f32(at(kK, kStride, i * kGroups + column_group, d));
      }
      OCTAVO_UNROLL
      for (int i = 0; i < 16; ++i)
        s[i / 4][i % 4] = ptx::fused_multiply_add(q[i / 4], k[i % 4], s[i / 4][i % 4]);
    }
  }
  static OCTAVO_DEVICE void multiply_pv(float (&o)[4][kColumns], u32 row_group, u32 column_group) {
    OCTAVO_UNROLL_BY(4)
    for (u32 key = 0; key < kKeys; ++key) {
      float weight[4], v[kColumns];
      OCTAVO_UNROLL
      for (u32 i = 0; i < 4; ++i)
        weight[i] = ptx::load_shared_f32(at(kP, kPStride, row_group * 4 + i, key));
      OCTAVO_UNROLL
      for (u32 c = 0; c < kColumns; ++c)
        v[c] = ptx::load_shared_f32(at(kV, kStride, key, c * kGroups + column_group));
      OCTAVO_UNROLL
      for (int i = 0; i < 4 * kColumns; ++i)
        o[i / kColumns][i % kColumns] = ptx::fused_multiply_add(
            weight[i / kColumns], v[i % kColumns], o[i / kColumns][i % kColumns]);
    }
  }

  // The online softmax of rung 1 for row i of the thread, whose scores 16 threads hold: they agree
  // on the maximum by shuffles. The weights go to shared memory.
  static OCTAVO_DEVICE void softmax_row(float (&s)[4], float (&o)[kColumns], float& row_max,
                                        float& row_sum, u32 row, u32 column_group, i32 visible) {
    float new_max = row_max;
    OCTAVO_UNROLL
    for (int j = 0; j < 4; ++j) {
      const i32 key = j * static_cast<i32>(kGroups) + static_cast<i32>(column_group);
      if (ptx::mask_term(key >= visible, false)) s[j] = -kInfinity;
      new_max = ptx::max_f32(new_max, s[j]);
    }
    for (int mask = 8; mask > 0; mask /= 2)
      new_max = ptx::max_f32(new_max, ptx::shuffle_xor(new_max, mask));
    const float correction = ptx::exp2_approx(row_max - new_max);
    row_max = new_max;
    row_sum *= correction;
    OCTAVO_UNROLL
    for (float& x : o) x *= correction;
    OCTAVO_UNROLL
    for (u32 j = 0; j < 4; ++j) {
      const float weight = ptx::exp2_approx(s[j] - new_max);
      row_sum += weight;
      ptx::store_shared_f32(at(kP, kPStride, row, j * kGroups + column_group), weight);
    }
  }

  // Places c and head_dim / 2 + c of the thread's columns are two neighbouring columns.
  static OCTAVO_DEVICE void store_row(const float (&o)[kColumns], float row_sum, u16* to,
                                      bool exists) {
    for (int mask = 8; mask > 0; mask /= 2) row_sum += ptx::shuffle_xor(row_sum, mask);
    if (ptx::mask_term(!exists, false)) return;
    OCTAVO_UNROLL
    for (u32 c = 0; c < kColumns / 2; ++c)
      ptx::store_global_b32(to + c * kGroups * 2,
                            ptx::f16x2_from_f32(o[c] / row_sum, o[kColumns / 2 + c] / row_sum));
  }

  static OCTAVO_DEVICE void run(const Params& p) {
    const RowTile<kRows> tile(p);
    const u32 row_group = ptx::thread_index() / kGroups;
    const u32 column_group = ptx::thread_index() % kGroups;
    const i64 q_row = i64{tile.head} * p.seqlen_q + tile.first_row;
    const i64 kv_row = i64{tile.head} * p.seqlen_kv;
    load_rows(kQ, p.q + q_row * kHeadDim, kRows, p.seqlen_q - tile.first_row);

    float o[4][kColumns] = {}, row_max[4], row_sum[4] = {};
    for (float& m : row_max) m = -kInfinity;
    const i32 keys = tile.keys(p);
    OCTAVO_ROLLED
    for (i32 key = 0; key < keys; key += kKeys) {
      ptx::cta_sync();
      load_rows(kK, p.k + (kv_row + key) * kHeadDim, kKeys, p.seqlen_kv - key);
      load_rows(kV, p.v + (kv_row + key) * kHeadDim, kKeys, p.seqlen_kv - key);
      ptx::cta_sync();
      float s[4][4] = {};
      multiply_qk(s, row_group, column_group);
      OCTAVO_UNROLL
      for (int i = 0; i < 4; ++i) {
        const i32 row = static_cast<i32>(row_group) * 4 + i;
        OCTAVO_UNROLL
        for (float& x : s[i]) x *= p.scale_log2;
        softmax_row(s[i], o[i], row_max[i], row_sum[i], static_cast<u32>(row), column_group,
                    visible_keys(p, tile.first_row + row) - key);
      }
      ptx::warp_sync();
      multiply_pv(o, row_group, column_group);
    }
    OCTAVO_UNROLL
    for (int i = 0; i < 4; ++i) {
      const i32 row = static_cast<i32>(row_group) * 4 + i;
      store_row(o[i], row_sum[i], p.o + (q_row + row) * kHeadDim + column_group * 2,
                tile.first_row + row < p.seqlen_q);
    }
  }
};

template <int kHeadDim>
OCTAVO_KERNEL(Tiled<kHeadDim>::kThreads, 1)
tiled(const OCTAVO_GRID_CONSTANT Params p) {
  Tiled<kHeadDim>::run(p);
}

}  // namespace octavo::ladder
