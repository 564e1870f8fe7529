// SPDX-License-Identifier: Apache-2.0
// Rows of scores in a thread's registers: the mask, the maximum and the sums of the online softmax,
// for all kernels.
//
// The accumulators of mma.sync and of wgmma have the same layout. Of every 16 rows a thread holds
// lane / 4 (r = 0) and lane / 4 + 8 (r = 1), and of each row columns 2 (lane % 4) and the next of
// every eight. The four lanes of a quad share their rows. Here `s` points to the registers of 16
// rows: s[4 i + 2 r + e] is column 8 i + e of row r, relative to the thread's first column.
//
// The kernels themselves decide which query a row is, when its reference maximum rises, and how P
// is rounded.
#pragma once

#include "device/core/block_range.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/thread.cuh"

namespace octavo {

inline constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000u);
inline constexpr float kLowest = -3.402823466e38f;  // ref_max of a row that has seen no keys
inline constexpr float kLn2 = 0.693147180559945f;
inline constexpr float kLog2E = 1.4426950408889634f;

// --- mask ---------------------------------------------------------------------------------------

// The thread's first column of the block whose first key is n.
OCTAVO_DEVICE i32 first_column(i32 n, u32 lane) { return n + static_cast<i32>(lane % 4 * 2); }

// The columns that a row sees, relative to the thread's first column.
struct ColumnRange {
  i32 begin, end;
  OCTAVO_DEVICE bool contains(i32 column) const { return column >= begin && column < end; }
};
template <int kColumns>
OCTAVO_DEVICE ColumnRange column_range(const KeyLimits& keys, i32 first) {
  return {ptx::mask_term(keys.begin - first, -kColumns),
          ptx::mask_term(keys.end - first, 2 * kColumns)};
}

// Sets the scores of row r in kN8 groups of eight columns to -infinity where is_seen(column) is
// false.
template <int kN8, class Seen>
OCTAVO_DEVICE void hide_unseen(float* s, int r, Seen&& is_seen) {
  OCTAVO_UNROLL
  for (int i = 0; i < kN8; ++i) {
    bool seen[2];
    OCTAVO_UNROLL
    for (int e = 0; e < 2; ++e) seen[e] = is_seen(i * 8 + e);
    OCTAVO_UNROLL
    for (int e = 0; e < 2; ++e) {
      float& score = s[i * 4 + r * 2 + e];
      score = seen[e] ? score : -kInfinity;
    }
  }
}
template <int kN8>
OCTAVO_DEVICE void mask_row(float* s, int r, const ColumnRange& seen) {
  hide_unseen<kN8>(s, r, [&](i32 column) { return seen.contains(column); });
}

// --- online softmax -----------------------------------------------------------------------------

// Over the four lanes that share a row.
OCTAVO_DEVICE float quad_max(float x) {
  const float of_two = ptx::max_f32(x, ptx::shuffle_xor(x, 1));
  return ptx::max_f32(of_two, ptx::shuffle_xor(of_two, 2));
}
OCTAVO_DEVICE float quad_sum(float x) {
  const float of_two = x + ptx::shuffle_xor(x, 1);
  return of_two + ptx::shuffle_xor(of_two, 2);
}

// The thread's largest score of row r in kN8 groups of eight columns from group `from` on. Two
// chains, as each maximum has to wait for the one before it.
template <int kN8>
OCTAVO_DEVICE float thread_max(const float* s, int r, int from = 0) {
  float even = s[from * 4 + r * 2];
  float odd = s[from * 4 + r * 2 + 1];
  OCTAVO_UNROLL
  for (int i = from + 1; i < from + kN8; ++i) {
    even = ptx::max_f32(even, s[i * 4 + r * 2]);
    odd = ptx::max_f32(odd, s[i * 4 + r * 2 + 1]);
  }
  return ptx::max_f32(even, odd);
}

// P = 2^(multiplier * s - ref_max).
OCTAVO_DEVICE float p_of_score(float s, float multiplier, float ref_max) {
  return ptx::exp2_approx(ptx::fused_multiply_add(s, multiplier, -ref_max));
}

// The LSE of a row, in natural units; `sum` is in units of 2^(ref_max - sum_log2). A row
// without keys gets -infinity.
OCTAVO_DEVICE float lse_of(float ref_max, float sum, float sum_log2 = 0) {
  const float lse_log2 = ref_max + ptx::log2_approx(sum) - sum_log2;
  return sum == 0.0f ? -kInfinity : lse_log2 * kLn2;
}

}  // namespace octavo
