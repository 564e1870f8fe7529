// SPDX-License-Identifier: Apache-2.0
// The registers of a tensor core product, and the online softmax on them. Rungs 3 to 5 share this
// file; rung 3 introduces it.
//
// mma.sync and wgmma spread an accumulator over a warp in the same way. A warp holds 16 rows; lane
// l holds, of rows g = l / 4 and g + 8, two columns of each eight:
//
//   x[4 i + 0], x[4 i + 1]   row g,     columns 8 i + 2 (l % 4) and the next one
//   x[4 i + 2], x[4 i + 3]   row g + 8, the same columns
//
// Four lanes, a quad, hold a whole row. The left operand of a product has the same layout, 16
// columns at a time: so the weights P, made of the scores S, need no exchange between lanes before
// they are multiplied with V.
#pragma once

#include "device/ladder/problem.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"

namespace octavo::ladder {

// 16 rows of a warp, kColumns columns.
template <int kColumns>
struct Accumulator {
  static constexpr int kSize = kColumns / 2;
  float x[kSize] = {};

  // The four registers of eight columns, for mma.sync.
  OCTAVO_DEVICE float (&tile(int i))[4] { return *reinterpret_cast<float(*)[4]>(x + i * 4); }
};

// The softmax's state of the thread's rows g and g + 8.
struct RowState {
  float max[2] = {-kInfinity, -kInfinity};
  float sum[2] = {0, 0};  // this thread's part; the quad's four parts are added at the end
};

// Sets scores of keys that a row does not see to -infinity. `row`: g; `key`: of column 0.
template <int kKeys>
OCTAVO_DEVICE void hide_keys(Accumulator<kKeys>& s, const Params& p, i32 row, i32 key) {
  OCTAVO_UNROLL
  for (int r = 0; r < 2; ++r) {
    const i32 visible =
        visible_keys(p, row + 8 * r) - key - static_cast<i32>(ptx::lane_index() % 4 * 2);
    OCTAVO_UNROLL
    for (int i = 0; i < kKeys / 4; ++i) {
      const int column = i / 2 * 8 + i % 2;
      float& x = s.x[i / 2 * 4 + r * 2 + i % 2];
      if (ptx::mask_term(column >= visible, false)) x = -kInfinity;
    }
  }
}

// Replaces scores by weights and rescales O, as rung 1 does for one key.
template <int kKeys, int kColumns>
OCTAVO_DEVICE void online_softmax(Accumulator<kKeys>& s, Accumulator<kColumns>& o, RowState& rows,
                                  float scale_log2) {
  OCTAVO_UNROLL
  for (int r = 0; r < 2; ++r) {
    float row_max = rows.max[r];
    OCTAVO_UNROLL
    for (int i = r * 2; i < kKeys / 2; i += 4)
      row_max = ptx::max_f32(row_max, ptx::max_f32(s.x[i], s.x[i + 1]));
    row_max = ptx::max_f32(row_max, ptx::shuffle_xor(row_max, 1));
    row_max = ptx::max_f32(row_max, ptx::shuffle_xor(row_max, 2));
    const float correction = ptx::exp2_approx((rows.max[r] - row_max) * scale_log2);
    rows.max[r] = row_max;
    float sum = rows.sum[r] * correction;
    OCTAVO_UNROLL
    for (int i = r * 2; i < kColumns / 2; i += 4) {
      o.x[i] *= correction;
      o.x[i + 1] *= correction;
    }
    const float subtract = row_max * scale_log2;
    OCTAVO_UNROLL
    for (int i = r * 2; i < kKeys / 2; i += 4) {
      s.x[i] = ptx::exp2_approx(ptx::fused_multiply_add(s.x[i], scale_log2, -subtract));
      s.x[i + 1] = ptx::exp2_approx(ptx::fused_multiply_add(s.x[i + 1], scale_log2, -subtract));
      sum += s.x[i] + s.x[i + 1];
    }
    rows.sum[r] = sum;
  }
}

// Adds a result over other keys: both are relative to their own maxima.
template <int kColumns>
OCTAVO_DEVICE void add_partial(Accumulator<kColumns>& o, RowState& rows,
                               const Accumulator<kColumns>& other, const RowState& other_rows,
                               float scale_log2) {
  OCTAVO_UNROLL
  for (int r = 0; r < 2; ++r) {
    const float row_max = ptx::max_f32(rows.max[r], other_rows.max[r]);
    const float a = ptx::exp2_approx((rows.max[r] - row_max) * scale_log2);
    const float b = ptx::exp2_approx((other_rows.max[r] - row_max) * scale_log2);
    rows.sum[r] = rows.sum[r] * a + other_rows.sum[r] * b;
    OCTAVO_UNROLL
    for (int i = r * 2; i < kColumns / 2; i += 4) {
      o.x[i] = o.x[i] * a + other.x[i] * b;
      o.x[i + 1] = o.x[i + 1] * a + other.x[i + 1] * b;
    }
  }
}

// Weights of keys 16 * step and on, rounded to FP16, as a left operand.
template <int kKeys>
OCTAVO_DEVICE void pack_p(u32 (&a)[4], const Accumulator<kKeys>& s, int step) {
  OCTAVO_UNROLL
  for (int i = 0; i < 4; ++i)
    a[i] = ptx::f16x2_from_f32(s.x[step * 8 + i * 2], s.x[step * 8 + i * 2 + 1]);
}

// O / sum as FP16, for those of the rows g and g + 8 that exist. `row`: g.
template <int kColumns>
OCTAVO_DEVICE void store_o(const Accumulator<kColumns>& o, const RowState& rows, const Params& p,
                           i32 head, i32 row) {
  OCTAVO_UNROLL
  for (int r = 0; r < 2; ++r) {
    float sum = rows.sum[r] + ptx::shuffle_xor(rows.sum[r], 1);
    sum += ptx::shuffle_xor(sum, 2);
    const float inverse = 1.0f / sum;
    const i32 to_row = row + 8 * r;
    if (ptx::mask_term(to_row >= p.seqlen_q, false)) continue;
    u16* const to = p.o + (i64{head} * p.seqlen_q + to_row) * kColumns + ptx::lane_index() % 4 * 2;
    OCTAVO_UNROLL
    for (int i = 0; i < kColumns / 8; ++i)
      ptx::store_global_b32(to + i * 8, ptx::f16x2_from_f32(o.x[i * 4 + r * 2] * inverse,
                                                            o.x[i * 4 + r * 2 + 1] * inverse));
  }
}

}  // namespace octavo::ladder
