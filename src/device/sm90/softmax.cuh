// SPDX-License-Identifier: Apache-2.0
// Mask and online softmax of FP32 scores: P = 2^(scale * s - ref_max), a block of keys at a time.
//
// ref_max is the reference maximum of a row in log2 units. It is not the true maximum. It rises
// only when a score exceeds it by kHeadroomLog2 (in log2 units), that is when P would exceed
// 2^kHeadroomLog2. So nearly every block leaves O as it is. Each row decides for itself, and its
// bits do not depend on its neighbours.
//
// `Qk` is the numerics' part that knows the scores:
//   Scores, Rows                          the fragment, with s[], and the row state
//   multiplier(rows, r, scale_log2, row_level)
//                                         from a score to log2 units; `row_level`: a score near the
//                                         row's largest, which tells if it is huge (huge_bias.cuh)
//   k_scale(scores, n8)                   scale of the keys of eight columns, or 1
//   exceeds_threshold(...)                whether some row of the warp has to raise its ref_max
//   thread_max_of(scores, largest, r)     this thread's largest scaled score of row r
//   headroom_used(thread_max, row_max, multiplier)
//                                         part of the headroom that a row gives up (FP8)
#pragma once

#include "device/core/block_range.cuh"
#include "device/core/score_rows.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/thread.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/huge_bias.cuh"

namespace octavo::sm90 {

// The columns that row r sees in the block at key n, relative to this thread's first column.
template <class G>
OCTAVO_DEVICE ColumnRange seen_columns(const Sm90ForwardParams& p, const typename G::RowTile& tile,
                                       i32 n, u32 r) {
  return column_range<G::C.block_n>(key_limits(p, tile.span, tile.query(p, r)),
                                    first_column(n, tile.lane));
}
template <class G>
OCTAVO_DEVICE void mask_f32(float* s, const Sm90ForwardParams& p, const typename G::RowTile& tile,
                            i32 n) {
  OCTAVO_UNROLL
  for (u32 r = 0; r < 2; ++r) mask_row<G::kScoreN8>(s, r, seen_columns<G>(p, tile, n, r));
}

// thread_max by comparing bits as integers, which order positive floats correctly; the ALU has a
// three-way integer maximum. If no score is positive, the result is unspecified but not positive
// (perhaps NaN).
template <int kN8>
OCTAVO_DEVICE float positive_thread_max(const float* s, int r, int from) {
  const auto bits = [&](int i, int e) {
    return static_cast<i32>(ptx::bits_of(s[i * 4 + r * 2 + e]));
  };
  i32 chains[2] = {max_of(bits(from, 0), bits(from, 1)),
                   max_of(bits(from + 1, 0), bits(from + 1, 1))};
  OCTAVO_UNROLL
  for (int i = from + 2; i < from + kN8; ++i)
    chains[i % 2] = max_of(max_of(chains[i % 2], bits(i, 0)), bits(i, 1));
  return ptx::float_of_bits(static_cast<u32>(max_of(chains[0], chains[1])));
}

// The row state that every numerics has. A row that has seen no key has ref_max kLowest.
struct RowState {
  float ref_max[2];
  float sum[2];  // this thread's part of the row sum; unused if columns of ones sum P
};

template <class State>
OCTAVO_DEVICE void clear_o(State& state) {
  OCTAVO_UNROLL
  for (float& o : state.o) o = 0;
}
template <class State>
OCTAVO_DEVICE void rescale_o(State& state, const float (&alpha)[2]) {
  constexpr int kCount = sizeof(state.o) / sizeof(float);
  OCTAVO_UNROLL
  for (int i = 0; i < kCount; ++i) state.o[i] *= alpha[i % 4 / 2];
}

// Row sums of P, from the ones columns of O or summed by the threads, and the division of O by
// them.
template <class G>
struct RowSums {
  // P is scaled by 2^kPLog2, and sums of P by 2^(kPLog2 + kSumLog2).
  static constexpr float kSumLog2 = 0;

  template <class State, class Rows>
  static OCTAVO_DEVICE float row_sum(const State& state, const Rows& rows, u32 r) {
    if constexpr (G::kOnes) return state.o[G::kORegisters + r * 2];
    return quad_sum(rows.sum[r]);
  }
  // Divides kCount registers of O by the sum of row r; without keys they become 0.
  template <int kCount>
  static OCTAVO_DEVICE void normalize(float* o, u32 r, float sum) {
    const float inverse = sum == 0.0f ? 0.0f : ptx::reciprocal_approx(sum);
    OCTAVO_UNROLL
    for (u32 i = 0; i < kCount / 2; ++i) o[i / 2 * 4 + r * 2 + i % 2] *= inverse;
  }
  template <class State, class Rows>
  static OCTAVO_DEVICE void normalize_row(State& state, const Rows& /*rows*/, u32 r, float sum) {
    normalize<G::kORegisters>(state.o, r, sum);
  }

  // Split-KV: the result of one split, and O / sum over all of them.
  template <class Partial, class State>
  static OCTAVO_DEVICE Partial to_partial(const State& state) {
    Partial all;
    OCTAVO_UNROLL
    for (int i = 0; i < G::kORegisters; ++i) all.o[i] = state.o[i];
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      all.ref_max[r] = ref_max_log2<G>(state.rows, r);
      all.sum[r] = row_sum(state, state.rows, r);
    }
    return all;
  }
  template <int kCount>
  static OCTAVO_DEVICE void normalize_partial(float* o, u32 r, float sum) {
    normalize<kCount>(o, r, sum);
  }
};

template <class G, class Qk, int kHeadroomLog2, int kPLog2>
struct F32Softmax {
  using Scores = typename Qk::Scores;
  using Rows = typename Qk::Rows;
  static constexpr Sm90ForwardConfig C = G::C;

  // Raises ref_max of rows whose scores need it, and then calls raised(alpha), which multiplies O
  // by alpha: 1 for other rows. `first`: the first block of a tile.
  template <class Raised>
  static OCTAVO_DEVICE void update_max(Scores& scores, Rows& rows, float scale_log2, bool first,
                                       Raised&& raised) {
    typename Qk::Largest largest;
    if (!Qk::exceeds_threshold(scores, rows, largest, first)) return;
    float alpha[2];
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float thread_max = Qk::thread_max_of(scores, largest, r);
      const float row_max = quad_max(thread_max);
      const float multiplier = Qk::multiplier(rows, r, scale_log2, row_max);
      const bool raises = row_max > -kInfinity && row_max >= rows.threshold[r];
      const float headroom_used = Qk::headroom_used(thread_max, row_max, multiplier);
      // When a row changes units (huge_bias.cuh), its old sum and O are negligible.
      const bool keeps_units = is_huge<G>(row_max) == is_huge<G>(rows.threshold[r]);
      const float old_max = keeps_units ? rows.ref_max[r] : kLowest;
      const float new_max = ptx::max_f32(old_max, row_max * multiplier) - headroom_used;
      const float room = (kHeadroomLog2 - headroom_used) * ptx::reciprocal_approx(multiplier);
      const float threshold = is_huge<G>(row_max) ? row_max : row_max + room;
      const float raised_alpha = ptx::exp2_approx(old_max - new_max);
      alpha[r] = raises ? raised_alpha : 1.0f;
      rows.ref_max[r] = raises ? new_max : rows.ref_max[r];
      rows.threshold[r] = raises ? threshold : rows.threshold[r];
      if (!C.sum_rounded_p) rows.sum[r] *= alpha[r];
    }
    raised(alpha);
  }

  // Turns scores into P times 2^kPLog2, in groups [from, to) of eight columns.
  static OCTAVO_DEVICE void exp(Scores& scores, Rows& rows, float scale_log2, int from, int to) {
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float multiplier = Qk::multiplier(rows, r, scale_log2, rows.threshold[r]);
      const float ref_max = rows.ref_max[r] - kPLog2;
      float sum[2] = {0, 0};
      OCTAVO_UNROLL
      for (int i = from; i < to; ++i) {
        OCTAVO_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& s = scores.s[i * 4 + r * 2 + e];
          s = p_of_score(s, multiplier * Qk::k_scale(scores, i), ref_max);
          if (!C.sum_rounded_p) sum[e] += s;
        }
      }
      if (!C.sum_rounded_p) rows.sum[r] += sum[0] + sum[1];
    }
  }
};

}  // namespace octavo::sm90
