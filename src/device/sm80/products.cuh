// The two matrix products of one block: s = q k^T, and o += p v.
#pragma once

#include "device/sm80/geometry.cuh"
#include "device/sm80/softmax.cuh"

namespace octavo::sm80 {

OCTAVO_DEVICE float to_float(float x) { return x; }
OCTAVO_DEVICE float to_float(i32 x) { return ptx::float_of_int(x); }

template <class G>
struct Products {
  using Operands = typename G::Operands;
  using Accumulator = typename Operands::Accumulator;
  using Place = typename G::Place;
  using Fold = typename Softmax<G>::Fold;
  static constexpr Sm80Forward C = G::C;
  static constexpr int kTilesM = G::kTilesM, kTilesN = G::kTilesN, kTilesD = G::kTilesD;

  static OCTAVO_DEVICE void load_q(typename G::QFragments& q, const Place& w) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) OCTAVO_UNROLL
    for (int k = 0; k < G::kQkSteps; ++k)
      Operands::load_q(q.a[m][k], G::q_tile(), w.warp_m * G::kRowsPerWarp + m * 16, k, w.lane);
  }

  // s = q k^T, raw: the scale is folded into the exponential.
  static OCTAVO_DEVICE void qk(typename G::Scores& scores, const typename G::QFragments& q,
                               const Place& w, int stage) {
    Accumulator s[kTilesM][kTilesN][4] = {};
    const auto k = G::k_tile(stage);
    OCTAVO_UNROLL
    for (int step = 0; step < G::kQkSteps; ++step) {
      FragmentA a[kTilesM];
      OCTAVO_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        if constexpr (C.q_in_registers)
          a[m] = q.a[m][step];
        else
          Operands::load_q(a[m], G::q_tile(), w.warp_m * G::kRowsPerWarp + m * 16, step, w.lane);
      }
      OCTAVO_UNROLL
      for (int n = 0; n < kTilesN; n += 2) {
        FragmentB2 b;
        Operands::load_k(b, k, w.warp_n * C.block_n + n * 8, step, w.lane);
        OCTAVO_UNROLL
        for (int m = 0; m < kTilesM; ++m) {
          Operands::mma_qk(s[m][n], a[m], b.r[0], s[m][n]);
          Operands::mma_qk(s[m][n + 1], a[m], b.r[1], s[m][n + 1]);
        }
      }
    }
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) OCTAVO_UNROLL
    for (int n = 0; n < kTilesN; ++n) OCTAVO_UNROLL
    for (int e = 0; e < 4; ++e) scores.s[m][n][e] = to_float(s[m][n][e]);
  }

  static OCTAVO_DEVICE void pv(typename G::State& state, const typename G::Scores& scores,
                               const Place& w, int stage) {
    const auto v = G::v_tile(stage);
    OCTAVO_UNROLL
    for (int step = 0; step < G::kPvSteps; ++step) {
      FragmentA p[kTilesM];
      OCTAVO_UNROLL
      for (int m = 0; m < kTilesM; ++m) Operands::pack_p(p[m], scores.s[m], step);
      OCTAVO_UNROLL
      for (int n = 0; n < kTilesD; n += 2) {
        FragmentB2 b;
        Operands::load_v(b, v, w.warp_n * C.block_n + step * Operands::kPvKeys, n / 2, w.lane);
        OCTAVO_UNROLL
        for (int m = 0; m < kTilesM; ++m) {
          Operands::mma_pv(state.o[m][n], p[m], b.r[0], state.o[m][n]);
          Operands::mma_pv(state.o[m][n + 1], p[m], b.r[1], state.o[m][n + 1]);
        }
      }
    }
  }

  // The 8-bit form: a fresh accumulator for the block, a few columns at a time so that it fits
  // beside O, then o = o * keep + t * add in FP32. FP8 products keep some 14 bits of what they
  // accumulate, INT8 ones count in the block's own steps: neither may run on from block to block.
  static OCTAVO_DEVICE void pv_folded(typename G::State& state, const typename G::Scores& scores,
                                      const Fold& fold, const Place& w, int stage) {
    constexpr int kColumns = min_of(kTilesD, 4);  // accumulator tiles at a time
    static_assert(kTilesD % kColumns == 0, "columns of O are folded in whole groups");
    const auto v = G::v_tile(stage);
    FragmentA p[kTilesM][G::kPvSteps];
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) OCTAVO_UNROLL
    for (int step = 0; step < G::kPvSteps; ++step) Operands::pack_p(p[m][step], scores.s[m], step);
    OCTAVO_UNROLL
    for (int first = 0; first < kTilesD; first += kColumns) {
      Accumulator t[kTilesM][kColumns][4] = {};
      OCTAVO_UNROLL
      for (int step = 0; step < G::kPvSteps; ++step) OCTAVO_UNROLL
      for (int n = 0; n < kColumns; n += 2) {
        FragmentB2 b;
        Operands::load_v(b, v, w.warp_n * C.block_n + step * Operands::kPvKeys, (first + n) / 2,
                         w.lane);
        OCTAVO_UNROLL
        for (int m = 0; m < kTilesM; ++m) {
          Operands::mma_pv(t[m][n], p[m][step], b.r[0]);
          Operands::mma_pv(t[m][n + 1], p[m][step], b.r[1]);
        }
      }
      OCTAVO_UNROLL
      for (int m = 0; m < kTilesM; ++m) OCTAVO_UNROLL
      for (int n = 0; n < kColumns; ++n) OCTAVO_UNROLL
      for (int e = 0; e < 4; ++e) {
        float& o = state.o[m][first + n][e];
        const float block = to_float(t[m][n][e]) * fold.add[m][e / 2];
        o = ptx::fused_multiply_add(o, fold.keep[m][e / 2], block);
      }
    }
  }
};

}  // namespace octavo::sm80
