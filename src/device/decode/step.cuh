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
  static constexpr int kTilesM = G::kTilesM, kKeys = G::kKeys;

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
    const auto scale_key = [&](int i, float of_key) {
      OCTAVO_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        OCTAVO_UNROLL
        for (int r = 0; r < 2; ++r) scores.at(m, r, i) *= scale * q.row_scale(m, r) * of_key;
      }
    };
    if (Numerics::has_k_scales(p)) {
      OCTAVO_UNROLL
      for (int i = 0; i < kKeys; ++i) scale_key(i, Numerics::k_key_scale(stage, thread, i));
    } else {
      OCTAVO_UNROLL
      for (int i = 0; i < kKeys; ++i) scale_key(i, 1);
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
        for (int n = 0; n < G::kScoreTiles; ++n) {
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
        // Distances are exact up to 2^24: the first is rounded once, and the others are constants.
        const float distance = ptx::float_of_int(diagonal - key - thread.first_key());
        OCTAVO_UNROLL
        for (int i = 0; i < kKeys; ++i) {
          float& score = scores.at(m, r, i);
          score = apply_alibi(score, slope, distance - static_cast<float>(Thread::key_offset(i)));
        }
      }
    }
  }

  // Hides the keys of a row for which is_seen(offset from the thread's first key) is false.
  template <class Seen>
  static OCTAVO_DEVICE void hide_unseen(Scores& scores, int m, int r, const Seen& is_seen) {
    OCTAVO_UNROLL
    for (int i = 0; i < kKeys; ++i) {
      float& score = scores.at(m, r, i);
      score = is_seen(Thread::key_offset(i)) ? score : -kInfinity;
    }
  }

  static OCTAVO_DEVICE void apply_mask(Scores& scores, const Params& p, const WorkTile& work,
                                       const SequenceSpan& span, i32 key, const Thread& thread) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const KeyLimits limits = limits_of(p, span, work.token(p, thread.row(m, r)));
        const ColumnRange seen = column_range<C.block_n>(limits, key + thread.first_key());
        hide_unseen(scores, m, r, [&](i32 offset) { return seen.contains(offset); });
      }
    }
  }

  // Hides keys of drafts. The last keys of the sequence are those of the queries themselves; a row
  // sees those whose bits are set in its word.
  static OCTAVO_DEVICE void hide_drafts(Scores& scores, const Params& p, const WorkTile& work,
                                        const SequenceSpan& span, i32 key, const Thread& thread) {
    const i32 first_draft = span.seqlen_kv - span.seqlen_q;
    if (ptx::mask_term(key + C.block_n <= first_draft, false)) return;
    const i32 of_thread = key + thread.first_key() - first_draft;
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const i32 row = min_of(thread.row(m, r), work.rows - 1);
        const u32 bits = static_cast<u32>(ptx::load_global_i32(
            p.draft_tree + static_cast<i64>(work.sequence) * p.seqlen_q + work.token(p, row)));
        hide_unseen(scores, m, r, [&](i32 offset) {
          const i32 draft = of_thread + offset;
          return draft < 0 || (draft < 32 && (bits >> draft & 1u) != 0);
        });
      }
    }
  }

  // Whether none of a thread's rows r of tile m exists, in all lanes.
  static OCTAVO_DEVICE bool is_empty(int m, int r, i32 rows) {
    return !G::kTransposed && m * 16 + r * 8 >= rows;
  }
  // The thread's largest score of a row. Two chains, as each maximum waits for the one before it.
  static OCTAVO_DEVICE float thread_max(Scores& scores, int m, int r) {
    float even = scores.at(m, r, 0), odd = scores.at(m, r, 1);
    OCTAVO_UNROLL
    for (int i = 2; i < kKeys; i += 2) {
      even = ptx::max_f32(even, scores.at(m, r, i));
      odd = ptx::max_f32(odd, scores.at(m, r, i + 1));
    }
    return ptx::max_f32(even, odd);
  }

  // Raises the reference maximum of each row whose P would otherwise exceed 2^kRescaleLog2. Each
  // row decides for itself, so its bits do not depend on its neighbours. Most steps raise none:
  // then the lanes that share a row need not look for its maximum.
  static OCTAVO_DEVICE void raise_maxima(Scores& scores, State& state, i32 rows) {
    float largest[kTilesM][2];
    float highest = 0;  // above the reference maximum, over the thread's rows
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        largest[m][r] = kLowest;
        if (is_empty(m, r, rows)) continue;
        largest[m][r] = thread_max(scores, m, r);
        highest = ptx::max_f32(highest, largest[m][r] - state.ref_max[m][r]);
      }
    }
    if (!ptx::warp_any(highest > Numerics::kRescaleLog2)) return;
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const float of_row = ptx::max_f32(Thread::row_max(largest[m][r]), kLowest);
        if (of_row - state.ref_max[m][r] > Numerics::kRescaleLog2)
          state.raise_ref_max(m, r, of_row);
      }
    }
  }

  // Replaces the scores by P = 2^(s - ref_max), and adds P to the row sums.
  static OCTAVO_DEVICE void softmax(Scores& scores, State& state, const PWeights& weights,
                                    i32 rows) {
    raise_maxima(scores, state, rows);
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        if (is_empty(m, r, rows)) {
          OCTAVO_UNROLL
          for (int i = 0; i < kKeys; ++i) scores.at(m, r, i) = 0;
          continue;
        }
        OCTAVO_UNROLL
        for (int i = 0; i < kKeys; ++i) {
          float& x = scores.at(m, r, i);
          x = weights.add(state.sum[m][r], ptx::exp2_approx(x - state.ref_max[m][r]), i);
        }
      }
    }
  }
};

}  // namespace octavo::decode
