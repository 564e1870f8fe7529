// SPDX-License-Identifier: Apache-2.0
// One step of a warp: scores of its block of keys, modifiers, mask, softmax, and o += p v.
//
// Scores are in log2 units from scale_scores() on.
#pragma once

#include "device/core/score_modifiers.cuh"
#include "device/core/score_rows.cuh"
#include "device/decode/geometry.cuh"
#include "device/decode/policies.cuh"

namespace octavo::decode {

template <class G>
struct Step {
  using Thread = typename G::Thread;
  using Scores = typename G::Scores;
  using State = typename G::State;
  using Numerics = NumericsOf<G>;
  using Products = ProductsOf<G>;
  using PWeights = typename Numerics::PWeights;
  static constexpr DecodeConfig C = G::C;
  static constexpr int kTilesM = G::kTilesM, kTilesN = G::kTilesN;

  // `key` is the block's first key, `scale` the factor from q k to log2 units.
  static OCTAVO_DEVICE void run(State& state, const typename G::Q& q, const Params& p,
                                const WorkTile& work, const SequenceKeys& keys, float scale,
                                i32 key, const Thread& thread, int stage) {
    Scores scores;
    Products::qk_gemm(scores, q, thread, stage);
    scale_scores(scores, q, p, scale, thread, stage);
    modify(scores, p, work, keys.span, key, thread);
    if (keys.range.needs_mask(key, C.block_n)) apply_mask(scores, p, work, keys.span, key, thread);
    if constexpr (C.draft_tree) hide_drafts(scores, p, work, keys.span, key, thread);
    const PWeights weights(scores, p, thread, stage);
    softmax(scores, state, weights, work.rows);
    Products::pv_gemm(state, scores, thread, stage);
  }

 private:
  // Brings the scores to log2 units.
  static OCTAVO_DEVICE void scale_scores(Scores& scores, const typename G::Q& q, const Params& p,
                                         float scale, const Thread& thread, int stage) {
    OCTAVO_UNROLL
    for (int n = 0; n < kTilesN; ++n) {
      OCTAVO_UNROLL
      for (int e = 0; e < 2; ++e) {
        const float factor = scale * Numerics::k_key_scale(p, stage, thread.key(n, e));
        OCTAVO_UNROLL
        for (int m = 0; m < kTilesM; ++m) {
          scores.s[m][n][e] *= factor * q.row_scale(m, 0);
          scores.s[m][n][2 + e] *= factor * q.row_scale(m, 1);
        }
      }
    }
  }

  // Applies softcap and ALiBi.
  static OCTAVO_DEVICE void modify(Scores& scores, const Params& p, const WorkTile& work,
                                   const SequenceSpan& span, i32 key, const Thread& thread) {
    const ScoreModifierParams& modifiers = p.modifiers.scores;
    if (modifiers.softcap_log2 != 0) {
      OCTAVO_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        OCTAVO_UNROLL
        for (int n = 0; n < kTilesN; ++n) {
          OCTAVO_UNROLL
          for (int e = 0; e < 4; ++e)
            scores.s[m][n][e] = apply_softcap(scores.s[m][n][e], modifiers);
        }
      }
    }
    if (modifiers.alibi_slopes == nullptr) return;
    const i32 offset = p.bottom_right ? span.seqlen_kv - span.seqlen_q : 0;
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const i32 row = min_of(thread.row(m, r), work.rows - 1);
        const float slope = alibi_slope_log2(modifiers, work.sequence, work.head(p, row));
        const i32 diagonal = work.token(p, row) - span.q_begin + offset;
        apply_alibi_row<kTilesN>(scores.s[m][0], r, slope,
                                 diagonal - first_column(key, thread.lane));
      }
    }
  }

  static OCTAVO_DEVICE void apply_mask(Scores& scores, const Params& p, const WorkTile& work,
                                       const SequenceSpan& span, i32 key, const Thread& thread) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const KeyLimits keys = limits_of(p, span, work.token(p, thread.row(m, r)));
        mask_row<kTilesN>(scores.s[m][0], r,
                          column_range<C.block_n>(keys, first_column(key, thread.lane)));
      }
    }
  }

  // Hides keys of drafts. The last keys of the sequence are those of the queries themselves; a row
  // sees those whose bits are set in its word.
  static OCTAVO_DEVICE void hide_drafts(Scores& scores, const Params& p, const WorkTile& work,
                                        const SequenceSpan& span, i32 key, const Thread& thread) {
    const i32 first_draft = span.seqlen_kv - span.seqlen_q;
    if (ptx::mask_term(key + C.block_n <= first_draft, false)) return;
    const i32 of_thread = first_column(key, thread.lane) - first_draft;
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const i32 row = min_of(thread.row(m, r), work.rows - 1);
        const u32 bits = static_cast<u32>(ptx::load_global_i32(
            p.draft_tree + static_cast<i64>(work.sequence) * p.seqlen_q + work.token(p, row)));
        hide_unseen<kTilesN>(scores.s[m][0], r, [&](i32 column) {
          const i32 draft = of_thread + column;
          return draft < 0 || (draft < 32 && (bits >> draft & 1u) != 0);
        });
      }
    }
  }

  // Replaces the scores by P = 2^(s - ref_max), and adds P to the row sums. A row's reference
  // maximum rises only if its P would exceed 2^kRescaleLog2. Each row decides for itself, so its
  // bits do not depend on its neighbours.
  static OCTAVO_DEVICE void softmax(Scores& scores, State& state, const PWeights& weights,
                                    i32 rows) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        float* const s = scores.s[m][0];
        if (m * 16 + r * 8 >= rows) {  // none of these eight rows exists
          OCTAVO_UNROLL
          for (int n = 0; n < kTilesN; ++n) scores.s[m][n][r * 2] = scores.s[m][n][r * 2 + 1] = 0;
          continue;
        }
        const float largest = ptx::max_f32(quad_max(thread_max<kTilesN>(s, r)), kLowest);
        const bool rises = largest - state.ref_max[m][r] > Numerics::kRescaleLog2;
        if (ptx::warp_any(rises) && rises) state.raise_ref_max(m, r, largest);
        OCTAVO_UNROLL
        for (int n = 0; n < kTilesN; ++n) {
          OCTAVO_UNROLL
          for (int e = 0; e < 2; ++e) {
            float& x = scores.s[m][n][r * 2 + e];
            x = weights.add(state.sum[m][r], ptx::exp2_approx(x - state.ref_max[m][r]), n, e);
          }
        }
      }
    }
  }
};

}  // namespace octavo::decode
