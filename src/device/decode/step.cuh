// One step of a warp: scores of its block of keys, modifiers, mask, softmax, and o += p v.
//
// Scores are in log2 units from the first step on. V's scale of a key, if it has one, multiplies
// the key's weight: it is added to the score as a logarithm, so that P stays near 1 whatever the
// scales, and the row's sum divides it out again.
#pragma once

#include "device/core/score_modifiers.cuh"
#include "device/decode/geometry.cuh"
#include "device/ptx/term.cuh"

namespace octavo::decode {

template <class G>
struct Step {
  using Thread = typename G::Thread;
  using Scores = typename G::Scores;
  using State = typename G::State;
  using Operands = typename G::Operands;
  static constexpr DecodeConfig C = G::C;
  static constexpr int kTilesM = G::kTilesM, kTilesN = G::kTilesN, kTilesD = G::kTilesD;

  // `key` is the block's first key, `scale` the factor from q k to log2 units.
  static OCTAVO_DEVICE void run(State& state, const typename G::Q& q, const Params& p,
                                const Unit& unit, const SequenceKeys& keys, float scale, i32 key,
                                const Thread& thread, int stage) {
    Scores scores;
    qk_gemm(scores, q, thread, stage);
    scale_scores(scores, q, p, scale, thread, stage);
    modify(scores, p, unit, keys.span, key, thread);
    if (keys.range.needs_mask(key, C.block_n)) apply_mask(scores, p, unit, keys.span, key, thread);
    KeyFactors v;
    if (G::k8bitKv && p.v_scale_per_key) v.load(scores, thread, stage);
    softmax(scores, state, v, unit.rows);
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
        float factor = scale;
        if (G::k8bitKv && p.k_scale_per_key)
          factor *= ptx::load_shared_f32(G::k_scale(stage, tile_key(thread, n, e)));
        OCTAVO_UNROLL
        for (int m = 0; m < kTilesM; ++m) {
          scores.s[m][n][e] *= factor * q.row_scale(m, 0);
          scores.s[m][n][2 + e] *= factor * q.row_scale(m, 1);
        }
      }
    }
  }

  // Softcap and ALiBi.
  static OCTAVO_DEVICE void modify(Scores& scores, const Params& p, const Unit& unit,
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
    const i32 first_column = key + static_cast<i32>(thread.lane % 4 * 2);
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const i32 row = min_of(thread.row(m, r), unit.rows - 1);
        const float slope = alibi_slope_log2(modifiers, unit.sequence, unit.head(p, row));
        const i32 diagonal = unit.token(p, row) - span.q_begin + offset;
        const float distance = ptx::float_of_int(diagonal - first_column);
        OCTAVO_UNROLL
        for (int n = 0; n < kTilesN; ++n) {
          OCTAVO_UNROLL
          for (int e = 0; e < 2; ++e) {
            float& s = scores.s[m][n][r * 2 + e];
            s = apply_alibi(s, slope, distance - static_cast<float>(n * 8 + e));
          }
        }
      }
    }
  }

  static OCTAVO_DEVICE void apply_mask(Scores& scores, const Params& p, const Unit& unit,
                                       const SequenceSpan& span, i32 key, const Thread& thread) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const KeyLimits keys = limits_of(p, span, unit.token(p, thread.row(m, r)));
        const i32 first_column = key + static_cast<i32>(thread.lane % 4 * 2);
        OCTAVO_UNROLL
        for (int n = 0; n < kTilesN; ++n) {
          OCTAVO_UNROLL
          for (int e = 0; e < 2; ++e) {
            const i32 column = first_column + n * 8 + e;
            float& s = scores.s[m][n][r * 2 + e];
            s = column >= keys.begin && column < keys.end ? s : -kInfinity;
          }
        }
      }
    }
  }

  // V's scales of this thread's keys.
  struct KeyFactors {
    float inverse[G::k8bitKv ? kTilesN : 1][2];  // of the magnitude: what a weight adds to the sum
    u32 sign[G::k8bitKv ? kTilesN : 1][2];
    bool used = false;

    // Adds the logarithms of the scales to the scores. A scale of 0 counts as 2^-100, which leaves
    // nothing of the value.
    OCTAVO_DEVICE void load(Scores& scores, const Thread& thread, int stage) {
      used = true;
      OCTAVO_UNROLL
      for (int n = 0; n < kTilesN; ++n) {
        OCTAVO_UNROLL
        for (int e = 0; e < 2; ++e) {
          const float scale = ptx::load_shared_f32(G::v_scale(stage, tile_key(thread, n, e)));
          const float magnitude = ptx::max_f32(ptx::abs_f32(scale), 7.9e-31f);
          inverse[n][e] = ptx::reciprocal_approx(magnitude);
          sign[n][e] = ptx::bits_of(scale) & 0x80000000u;
          const float log2 = ptx::log2_approx(magnitude);
          OCTAVO_UNROLL
          for (int m = 0; m < kTilesM; ++m) {
            scores.s[m][n][e] += log2;
            scores.s[m][n][2 + e] += log2;
          }
        }
      }
    }
  };

  static OCTAVO_DEVICE u32 tile_key(const Thread& thread, int n, int e) {
    return thread.warp * C.block_n + static_cast<u32>(n * 8 + e) + thread.lane % 4 * 2;
  }

  static OCTAVO_DEVICE float block_max(const Scores& scores, int m, int r) {
    float largest = scores.s[m][0][r * 2];
    OCTAVO_UNROLL
    for (int n = 0; n < kTilesN; ++n)
      largest =
          ptx::max_f32(largest, ptx::max_f32(scores.s[m][n][r * 2], scores.s[m][n][r * 2 + 1]));
    largest = ptx::max_f32(largest, ptx::shuffle_xor(largest, 1));
    largest = ptx::max_f32(largest, ptx::shuffle_xor(largest, 2));
    return ptx::max_f32(largest, kLowest);
  }

  // Replaces the scores by their weights, 2^(s - ref_max), and adds these to the sums. A row's
  // reference maximum moves only if a weight would exceed 2^kRescaleLog2; the row decides for
  // itself, so its bits do not depend on its neighbours.
  static OCTAVO_DEVICE void softmax(Scores& scores, State& state, const KeyFactors& v, i32 rows) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        if (m * 16 + r * 8 >= rows) {  // none of these eight rows exists
          OCTAVO_UNROLL
          for (int n = 0; n < kTilesN; ++n) scores.s[m][n][r * 2] = scores.s[m][n][r * 2 + 1] = 0;
          continue;
        }
        const float largest = block_max(scores, m, r);
        const bool moves = largest - state.ref_max[m][r] > kRescaleLog2;
        if (ptx::warp_any(moves) && moves) rescale(state, m, r, largest);
        OCTAVO_UNROLL
        for (int n = 0; n < kTilesN; ++n) {
          OCTAVO_UNROLL
          for (int e = 0; e < 2; ++e) {
            float& s = scores.s[m][n][r * 2 + e];
            s = ptx::exp2_approx(s - state.ref_max[m][r]);
            if (G::k8bitKv && v.used) {
              state.sum[m][r] = ptx::fused_multiply_add(s, v.inverse[n][e], state.sum[m][r]);
              s = ptx::float_of_bits(ptx::bits_of(s) ^ v.sign[n][e]);
            } else {
              state.sum[m][r] += s;
            }
          }
        }
      }
    }
  }

  static OCTAVO_DEVICE void rescale(State& state, int m, int r, float to) {
    const float alpha = ptx::exp2_approx(state.ref_max[m][r] - to);
    state.ref_max[m][r] = to;
    state.sum[m][r] *= alpha;
    OCTAVO_UNROLL
    for (int n = 0; n < kTilesD; ++n) {
      OCTAVO_UNROLL
      for (int e = r * 2; e < r * 2 + 2; ++e) state.o[m][n][e] *= alpha;
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
