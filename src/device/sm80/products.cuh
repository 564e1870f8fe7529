// The two matrix products of one block: s = q k^T, and o += p v.
//
// Both read fragments of one operand from shared memory, up to a step ahead of the mma that uses
// them: a warp has only one other to hide the latency of ldmatrix behind.
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
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int k = 0; k < G::kQkSteps; ++k)
        Operands::load_q(q.a[m][k], G::q_tile(), w.warp_m * G::kRowsPerWarp + m * 16, k, w.lane);
    }
  }

  // Fragments of one step of the QK product.
  struct QkStep {
    FragmentA q[kTilesM];
    FragmentB2 k[kTilesN / 2];
  };
  static OCTAVO_DEVICE void load_qk(QkStep& f, const typename G::QFragments& q, const Place& w,
                                    int stage, int step) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      if constexpr (C.q_in_registers)
        f.q[m] = q.a[m][step];
      else
        Operands::load_q(f.q[m], G::q_tile(), w.warp_m * G::kRowsPerWarp + m * 16, step, w.lane);
    }
    OCTAVO_UNROLL
    for (int n = 0; n < kTilesN; n += 2)
      Operands::load_k(f.k[n / 2], G::k_tile(stage), w.warp_n * C.block_n + n * 8, step, w.lane);
  }

  // s = q k^T, raw: the scale is folded into the exponential.
  static OCTAVO_DEVICE void qk(typename G::Scores& scores, const typename G::QFragments& q,
                               const Place& w, int stage) {
    Accumulator s[kTilesM][kTilesN][4] = {};
    QkStep f[C.prefetch_k ? 2 : 1];
    if constexpr (C.prefetch_k) load_qk(f[0], q, w, stage, 0);
    OCTAVO_UNROLL
    for (int step = 0; step < G::kQkSteps; ++step) {
      QkStep& now = f[C.prefetch_k ? step % 2 : 0];
      if constexpr (!C.prefetch_k)
        load_qk(now, q, w, stage, step);
      else if (step + 1 < G::kQkSteps)
        load_qk(f[(step + 1) % 2], q, w, stage, step + 1);
      OCTAVO_UNROLL
      for (int n = 0; n < kTilesN; ++n) {
        OCTAVO_UNROLL
        for (int m = 0; m < kTilesM; ++m)
          Operands::mma_qk(s[m][n], now.q[m], now.k[n / 2].r[n % 2], s[m][n]);
      }
    }
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int n = 0; n < kTilesN; ++n) {
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) scores.s[m][n][e] = to_float(s[m][n][e]);
      }
    }
  }

  // P in the format of the product. Packed before the product starts: half the registers or fewer
  // of the scores it comes from.
  struct PFragments {
    FragmentA p[kTilesM][G::kPvSteps];
  };
  static OCTAVO_DEVICE void pack(PFragments& f, const typename G::Scores& scores) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int step = 0; step < G::kPvSteps; ++step)
        Operands::pack_p(f.p[m][step], scores.s[m], step);
    }
  }

  // V's fragments for one step of keys and kVTiles tiles of columns.
  static constexpr int kVTiles = gcd_of(kTilesD, C.v_tiles);
  static_assert(kVTiles % 2 == 0, "columns of V are read in pairs of tiles");
  struct VGroup {
    FragmentB2 v[kVTiles / 2];
  };
  static OCTAVO_DEVICE void load_v(VGroup& f, const Place& w, int stage, int step, int first) {
    OCTAVO_UNROLL
    for (int n = 0; n < kVTiles; n += 2)
      Operands::load_v(f.v[n / 2], G::v_tile(stage),
                       w.warp_n * C.block_n + step * Operands::kPvKeys, (first + n) / 2, w.lane);
  }

  // o += p v, columns inside keys; the next group's fragments are read ahead of the mma.
  static OCTAVO_DEVICE void pv(typename G::State& state, const typename G::Scores& scores,
                               const Place& w, int stage) {
    constexpr int kGroups = kTilesD / kVTiles;
    constexpr int kItems = G::kPvSteps * kGroups;
    PFragments p;
    pack(p, scores);
    VGroup f[2];
    load_v(f[0], w, stage, 0, 0);
    OCTAVO_UNROLL
    for (int i = 0; i < kItems; ++i) {
      if (i + 1 < kItems)
        load_v(f[(i + 1) % 2], w, stage, (i + 1) / kGroups, (i + 1) % kGroups * kVTiles);
      OCTAVO_UNROLL
      for (int n = 0; n < kVTiles; ++n) {
        OCTAVO_UNROLL
        for (int m = 0; m < kTilesM; ++m) {
          auto& o = state.o[m][i % kGroups * kVTiles + n];
          Operands::mma_pv(o, p.p[m][i / kGroups], f[i % 2].v[n / 2].r[n % 2], o);
        }
      }
    }
  }

  // The 8-bit form: a fresh accumulator for the block, a few columns at a time so that it fits
  // beside O, then o = o * keep + t * add in FP32. FP8 products keep some 14 bits of what they
  // accumulate, INT8 ones count in the block's own steps: neither may run on from block to block.
  static OCTAVO_DEVICE void pv_folded(typename G::State& state, const typename G::Scores& scores,
                                      const Fold& fold, const Place& w, int stage) {
    PFragments p;
    pack(p, scores);
    OCTAVO_UNROLL
    for (int first = 0; first < kTilesD; first += kVTiles) {
      Accumulator t[kTilesM][kVTiles][4] = {};
      OCTAVO_UNROLL
      for (int step = 0; step < G::kPvSteps; ++step) {
        VGroup f;
        load_v(f, w, stage, step, first);
        OCTAVO_UNROLL
        for (int n = 0; n < kVTiles; ++n) {
          OCTAVO_UNROLL
          for (int m = 0; m < kTilesM; ++m)
            Operands::mma_pv(t[m][n], p.p[m][step], f.v[n / 2].r[n % 2], t[m][n]);
        }
      }
      fold_into(state, t, fold, first);
    }
  }

  static OCTAVO_DEVICE void fold_into(typename G::State& state,
                                      const Accumulator (&t)[kTilesM][kVTiles][4], const Fold& fold,
                                      int first) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int n = 0; n < kVTiles; ++n) {
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) {
          float& o = state.o[m][first + n][e];
          const float block = to_float(t[m][n][e]) * fold.add[m][e / 2];
          o = ptx::fused_multiply_add(o, fold.keep[m][e / 2], block);
        }
      }
    }
  }
};

}  // namespace octavo::sm80
