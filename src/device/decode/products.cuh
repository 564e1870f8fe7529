// SPDX-License-Identifier: Apache-2.0
// The two products of a step with a 16-bit or 8-bit cache: s = q k^T and o += p v. Elements become
// operands of the products one fragment at a time (operands.cuh). With eight query rows the
// products are s^T = k q^T and o^T = v^T p^T, of the same fragments: an A operand of sixteen keys
// is the B operands of eight keys and of the next eight, and a B operand of eight rows of Q is the
// first half of an A operand. Only P has to be transposed in between.
#pragma once

#include "device/decode/geometry.cuh"
#include "device/ptx/fragment.cuh"

namespace octavo::decode {

// The accumulators of a transposed tile, in which query rows are columns: the two values of a row
// are elements r and 2 + r, where Scores and State have them in 2 r and 2 r + 1.
template <class Product>
OCTAVO_DEVICE void add_transposed(float (&x)[4], const Product& product) {
  float d[4] = {x[0], x[2], x[1], x[3]};
  product(d);
  OCTAVO_UNROLL
  for (int i = 0; i < 4; ++i) x[i] = d[i % 2 * 2 + i / 2];
}

// P of sixteen keys and eight rows, transposed.
template <class Operands>
OCTAVO_DEVICE FragmentB transposed_weights(const float (&s)[4]) {
  FragmentB w;
  OCTAVO_UNROLL
  for (int i = 0; i < 2; ++i) w.r[i] = ptx::transpose_matrix(Operands::pack_pair(s[i], s[2 + i]));
  return w;
}

template <class G>
struct Products {
  using Thread = typename G::Thread;
  using Scores = typename G::Scores;
  using State = typename G::State;
  using Operands = typename G::Operands;
  static constexpr DecodeConfig C = G::C;
  static constexpr int kTilesM = G::kTilesM, kTilesN = G::kTilesN, kTilesD = G::kTilesD;

  // s = q k^T.
  static OCTAVO_DEVICE void qk_gemm(Scores& scores, const typename G::Q& q, const Thread& thread,
                                    int stage) {
    const u32 key = thread.warp * C.block_n;
    const auto lane = G::kTransposed ? Operands::k_rows_lane(G::k_tile(stage), key, thread.lane)
                                     : Operands::k_lane(G::k_tile(stage), key, thread.lane);
    scores.clear();
    OCTAVO_UNROLL
    for (int step = 0; step < G::kQkSteps; step += kAtOnce) {
      OCTAVO_UNROLL
      for (int n = 0; n < kTilesN; n += 2) {
        FragmentB2 k[kAtOnce];
        Operands::load_k(k, lane, static_cast<u32>(n * 8), static_cast<u32>(step));
        OCTAVO_UNROLL
        for (int at = 0; at < kAtOnce; ++at) {
          OCTAVO_UNROLL
          for (int m = 0; m < kTilesM; ++m)
            add_scores(scores, q.fragment(m, step + at, thread), k[at], m, n);
        }
      }
    }
  }

  // o += p v.
  static OCTAVO_DEVICE void pv_gemm(State& state, const Scores& weights, const Thread& thread,
                                    int stage) {
    const u32 key = thread.warp * C.block_n;
    const auto lane = G::kTransposed ? Operands::v_rows_lane(G::v_tile(stage), key, thread.lane)
                                     : Operands::v_lane(G::v_tile(stage), key, thread.lane);
    OCTAVO_UNROLL
    for (int step = 0; step < G::kPvSteps; ++step) {
      Weights w[kTilesM];
      OCTAVO_UNROLL
      for (int m = 0; m < kTilesM; ++m) w[m] = pack(weights, m, step);
      OCTAVO_UNROLL
      for (int n = 0; n < kTilesD; n += 2 * kAtOnce) {
        FragmentB2 v[kAtOnce];
        Operands::load_v(v, lane, static_cast<u32>(step * 16), static_cast<u32>(n / 2));
        OCTAVO_UNROLL
        for (int at = 0; at < kAtOnce; ++at) {
          OCTAVO_UNROLL
          for (int m = 0; m < kTilesM; ++m) add_o(state, w[m], v[at], m, n + at * 2);
        }
      }
    }
  }

 private:
  static constexpr int kAtOnce = Operands::kAtOnce;
  // P of sixteen keys as an operand: of sixteen rows, or transposed of eight.
  using Weights = typename G::template Select<!G::kTransposed, FragmentA, FragmentB>::Type;

  static OCTAVO_DEVICE Weights pack(const Scores& weights, int m, int step) {
    if constexpr (G::kTransposed) {
      return transposed_weights<Operands>(weights.s[m][step]);
    } else {
      FragmentA w;
      OCTAVO_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float(&s)[4] = weights.s[m][step * 2 + i / 2];
        w.r[i] = Operands::pack_pair(s[i % 2 * 2], s[i % 2 * 2 + 1]);
      }
      return w;
    }
  }

  // Adds one step's products to the scores of sixteen keys.
  static OCTAVO_DEVICE void add_scores(Scores& scores, const FragmentA& q, const FragmentB2& k,
                                       int m, int n) {
    if constexpr (G::kTransposed) {
      const u32 b[2] = {q.r[0], q.r[2]};
      add_transposed(scores.s[m][n / 2],
                     [&](float(&s)[4]) { Operands::mma_qk(s, Operands::as_rows(k), b, s); });
    } else {
      OCTAVO_UNROLL
      for (int i = 0; i < 2; ++i) {
        auto& s = scores.s[m][n + i];
        Operands::mma_qk(s, q, k.r[i], s);
      }
    }
  }

  // Adds the products of sixteen keys to sixteen columns of O.
  static OCTAVO_DEVICE void add_o(State& state, const Weights& w, const FragmentB2& v, int m,
                                  int n) {
    if constexpr (G::kTransposed) {
      add_transposed(state.o[m][n / 2],
                     [&](float(&o)[4]) { Operands::mma_pv(o, Operands::as_rows(v), w.r, o); });
    } else {
      OCTAVO_UNROLL
      for (int i = 0; i < 2; ++i) {
        auto& o = state.o[m][n + i];
        Operands::mma_pv(o, w, v.r[i], o);
      }
    }
  }
};

}  // namespace octavo::decode
