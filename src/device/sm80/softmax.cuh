// SPDX-License-Identifier: Apache-2.0
// Mask, scales and online softmax on the score registers of one warp.
#pragma once

#include "device/core/score_rows.cuh"
#include "device/ptx/thread.cuh"
#include "device/sm80/geometry.cuh"

namespace octavo::sm80 {

template <class G>
struct Softmax {
  using Scores = typename G::Scores;
  using State = typename G::State;
  using RowTile = typename G::RowTile;
  using Operands = typename G::Operands;
  static constexpr int kTilesM = G::kTilesM, kTilesN = G::kTilesN;

  // The promotion of a block's separate PV accumulator t: o = o * keep + t * add.
  struct Promotion {
    float keep[kTilesM][2];
    float add[kTilesM][2];
  };

  // Scores of keys outside a row's interval become -infinity; `key` is the block's first key.
  static OCTAVO_DEVICE void apply_mask(Scores& scores, const ForwardParams& p, const RowTile& tile,
                                       i32 key) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const i32 row = tile.first_row + static_cast<i32>(tile.row(m, r));
        const KeyLimits keys = key_limits(p, tile.span, row);
        mask_row<kTilesN>(scores.s[m][0], r,
                          column_range<G::C.block_n>(keys, first_column(key, tile.lane)));
      }
    }
  }

  // For a negative softmax scale: everything after this uses the scale's magnitude.
  static OCTAVO_DEVICE void negate(Scores& scores) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int n = 0; n < kTilesN; ++n) {
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) scores.s[m][n][e] = -scores.s[m][n][e];
      }
    }
  }

  // Multiplies scores by the scale of their key, if K has a scale per row.
  static OCTAVO_DEVICE void scale_keys(Scores& scores, const ForwardParams& p, const RowTile& tile,
                                       i32 key) {
    const ScaleParams& k = p.k_scales;
    const float* const scales =
        k.data + tile.sequence * k.batch + tile.head / p.heads_per_kv * k.head;
    const i32 token = k.by_token ? tile.span.kv_begin : 0;
    OCTAVO_UNROLL
    for (int n = 0; n < kTilesN; ++n) {
      OCTAVO_UNROLL
      for (int e = 0; e < 2; ++e) {
        const i32 column = key + n * 8 + static_cast<i32>(tile.lane % 4 * 2) + e;
        const i32 row = token + min_of(column, tile.span.seqlen_kv - 1);
        const float scale =
            ptx::load_global_f32(scales + static_cast<i64>(row / k.block_rows) * k.stride);
        OCTAVO_UNROLL
        for (int m = 0; m < kTilesM; ++m) {
          scores.s[m][n][e] *= scale;
          scores.s[m][n][2 + e] *= scale;
        }
      }
    }
  }

  static OCTAVO_DEVICE float block_max(const Scores& scores, int m, int r) {
    return quad_max(thread_max<kTilesN>(scores.s[m][0], r));
  }

  // Replaces the scores of one row by 2^(scale * s - ref_max) and returns their sum in this thread.
  static OCTAVO_DEVICE float exponentiate(Scores& scores, int m, int r, float scale,
                                          float ref_max) {
    float sum = 0;
    OCTAVO_UNROLL
    for (int n = 0; n < kTilesN; ++n) {
      OCTAVO_UNROLL
      for (int e = 0; e < 2; ++e) {
        float& s = scores.s[m][n][r * 2 + e];
        s = weight_of<G::C.exp>(s, scale, ref_max);
        sum += s;
      }
    }
    return sum;
  }

  // For products that accumulate directly into O.
  //
  // A row's reference maximum changes only when a score would exceed 2^rescale_log2 after the
  // exponential. P and the sum stay far from overflow, and nearly every block skips rescaling O, a
  // multiplication per element. Each row decides for itself, so its bits do not depend on its
  // neighbours; the warp only skips the work if no row changed.
  static OCTAVO_DEVICE void update_ref_max(const Scores& scores, State& state) {
    float largest[kTilesM][2];
    bool any_moves = false;
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        largest[m][r] = exponent_of(block_max(scores, m, r), state.scale_of(m, r));
        any_moves = any_moves || moves(state, m, r, largest[m][r]);
      }
    }
    if (!ptx::warp_any(any_moves)) return;
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r)
        if (moves(state, m, r, largest[m][r])) state.raise_ref_max(m, r, largest[m][r]);
    }
  }
  static OCTAVO_DEVICE bool moves(const State& state, int m, int r, float to) {
    return to - state.ref_max[m][r] > G::C.rescale_log2;
  }
  // Register i of P's fragments of one step: two neighbouring keys of one row, which are added to
  // its sum.
  static OCTAVO_DEVICE u32 probabilities(const Scores& scores, State& state, int step, int i) {
    const int m = i / 4, r = i % 2;
    const float(&s)[4] = scores.s[m][step * 2 + i % 4 / 2];
    const float scale = state.scale_of(m, r), ref_max = state.ref_max[m][r];
    if constexpr (G::C.exp == ExpForm::f16x2) {
      const u32 p = ptx::exp2_approx_f16x2(
          ptx::f16x2_from_f32(ptx::fused_multiply_add(s[r * 2], scale, -ref_max),
                              ptx::fused_multiply_add(s[r * 2 + 1], scale, -ref_max)));
      float low, high;
      ptx::f32_from_f16x2(low, high, p);
      state.sum[m][r] += low + high;
      return p;
    } else {
      const float low = weight_of<G::C.exp>(s[r * 2], scale, ref_max);
      const float high = weight_of<G::C.exp>(s[r * 2 + 1], scale, ref_max);
      state.sum[m][r] += low + high;
      return Operands::pack_pair(low, high);
    }
  }

  // For products that are promoted block by block: the promotion also rescales O.
  static OCTAVO_DEVICE void softmax_promoted(Scores& scores, State& state, Promotion& promotion) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const float scale = state.scale_of(m, r);
        const float in_block = exponent_of(block_max(scores, m, r), scale);
        const float ref_max = ptx::max_f32(state.ref_max[m][r], in_block);
        const float keep = ptx::exp2_approx(state.ref_max[m][r] - ref_max);
        const float add = Operands::kBlockMaximum ? ptx::exp2_approx(in_block - ref_max) : 1.0f;
        const float p_ref_max =
            Operands::kBlockMaximum ? in_block : ref_max - Operands::kProbabilityLog2;
        const float sum = exponentiate(scores, m, r, scale, p_ref_max);
        state.ref_max[m][r] = ref_max;
        state.sum[m][r] = ptx::fused_multiply_add(state.sum[m][r], keep, sum * add);
        promotion.keep[m][r] = keep;
        promotion.add[m][r] = add;
      }
    }
  }
};

}  // namespace octavo::sm80
