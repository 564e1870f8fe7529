// One step of a warp: scores of its block of keys, modifiers, mask, softmax, and o += p v.
//
// Scores are in log2 units from scale_scores() on.
#pragma once

#include "device/core/score_modifiers.cuh"
#include "device/core/score_rows.cuh"
#include "device/decode/geometry.cuh"
#include "device/decode/numerics.cuh"

namespace octavo::decode {

template <class G>
struct Step {
  using Thread = typename G::Thread;
  using Scores = typename G::Scores;
  using State = typename G::State;
  using Operands = typename G::Operands;
  using Numerics = NumericsOf<G>;
  using PWeights = typename Numerics::PWeights;
  static constexpr DecodeConfig C = G::C;
  static constexpr int kTilesM = G::kTilesM, kTilesN = G::kTilesN, kTilesD = G::kTilesD;

  // `key` is the block's first key, `scale` the factor from q k to log2 units.
  static OCTAVO_DEVICE void run(State& state, const typename G::Q& q, const Params& p,
                                const WorkTile& work, const SequenceKeys& keys, float scale,
                                i32 key, const Thread& thread, int stage) {
    Scores scores;
    qk_gemm(scores, q, thread, stage);
    scale_scores(scores, q, p, scale, thread, stage);
    modify(scores, p, work, keys.span, key, thread);
    if (keys.range.needs_mask(key, C.block_n)) apply_mask(scores, p, work, keys.span, key, thread);
    const PWeights weights(scores, p, thread, stage);
    softmax(scores, state, weights, work.rows);
    pv_gemm(state, scores, thread, stage);
  }

 private:
  static OCTAVO_DEVICE void qk_gemm(Scores& scores, const typename G::Q& q, const Thread& thread,
                                    int stage) {
    const auto lane = Operands::k_lane(G::k_tile(stage), thread.warp * C.block_n, thread.lane);
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int n = 0; n < kTilesN; ++n) {
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) scores.s[m][n][e] = 0;
      }
    }
    OCTAVO_UNROLL
    for (int step = 0; step < G::kQkSteps; ++step) {
      FragmentA a[kTilesM];
      OCTAVO_UNROLL
      for (int m = 0; m < kTilesM; ++m) a[m] = q.fragment(m, step, thread);
      OCTAVO_UNROLL
      for (int n = 0; n < kTilesN; n += 2) {
        FragmentB2 k;
        Operands::load_k(k, lane, static_cast<u32>(n * 8), static_cast<u32>(step));
        OCTAVO_UNROLL
        for (int i = 0; i < 2; ++i) {
          OCTAVO_UNROLL
          for (int m = 0; m < kTilesM; ++m) {
            auto& s = scores.s[m][n + i];
            Operands::mma_qk(s, a[m], k.r[i], s);
          }
        }
      }
    }
  }

  // To log2 units.
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

  // Softcap and ALiBi.
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

  // Replaces the scores by their weights, 2^(s - ref_max), and adds these to the sums. A row's
  // reference maximum rises only if a weight would exceed 2^kRescaleLog2; the row decides for
  // itself, so its bits do not depend on its neighbours.
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
        const bool rises = largest - state.ref_max[m][r] > kRescaleLog2;
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

  static OCTAVO_DEVICE void pv_gemm(State& state, const Scores& weights, const Thread& thread,
                                    int stage) {
    const auto lane = Operands::v_lane(G::v_tile(stage), thread.warp * C.block_n, thread.lane);
    OCTAVO_UNROLL
    for (int step = 0; step < G::kPvSteps; ++step) {
      FragmentA w[kTilesM];
      OCTAVO_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        OCTAVO_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float(&s)[4] = weights.s[m][step * 2 + i / 2];
          w[m].r[i] = Operands::pack_pair(s[i % 2 * 2], s[i % 2 * 2 + 1]);
        }
      }
      OCTAVO_UNROLL
      for (int n = 0; n < kTilesD; n += 2) {
        FragmentB2 v;
        Operands::load_v(v, lane, static_cast<u32>(step * 16), static_cast<u32>(n / 2));
        OCTAVO_UNROLL
        for (int i = 0; i < 2; ++i) {
          OCTAVO_UNROLL
          for (int m = 0; m < kTilesM; ++m) {
            auto& o = state.o[m][n + i];
            Operands::mma_pv(o, w[m], v.r[i], o);
          }
        }
      }
    }
  }
};

}  // namespace octavo::decode
