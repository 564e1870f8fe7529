// SPDX-License-Identifier: Apache-2.0
// The two products of a step with a 16-bit or 8-bit cache: s = q k^T and o += p v. Elements become
// operands of the products one fragment at a time (operands.cuh).
#pragma once

#include "device/decode/geometry.cuh"

namespace octavo::decode {

template <class G>
struct Products {
  using Thread = typename G::Thread;
  using Scores = typename G::Scores;
  using State = typename G::State;
  using Operands = typename G::Operands;
  static constexpr DecodeConfig C = G::C;
  static constexpr int kTilesM = G::kTilesM, kTilesN = G::kTilesN, kTilesD = G::kTilesD;

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
