// SPDX-License-Identifier: Apache-2.0
// The two matrix products of one block: s = q k^T, and o += p v.
//
// Both read fragments of one operand from shared memory, up to a step ahead of the mma that uses
// them, because a warp has only one other warp to hide the latency of ldmatrix.
#pragma once

#include "device/sm80/geometry.cuh"
#include "device/sm80/softmax.cuh"

namespace octavo::sm80 {

OCTAVO_DEVICE float to_float(float x) { return x; }
OCTAVO_DEVICE float to_float(i32 x) { return ptx::float_of_int(x); }

// The accumulator of one tile of scores.
template <class Operands, bool kInF16>
struct ScoreAccumulator {
  typename Operands::Accumulator s[4];

  OCTAVO_DEVICE void add(const FragmentA& q, const u32 (&k)[2]) { Operands::mma_qk(s, q, k, s); }
  OCTAVO_DEVICE void read(float (&to)[4]) const {
    OCTAVO_UNROLL
    for (int e = 0; e < 4; ++e) to[e] = to_float(s[e]);
  }
};
template <class Operands>
struct ScoreAccumulator<Operands, true> {
  u32 s[2];

  OCTAVO_DEVICE void add(const FragmentA& q, const u32 (&k)[2]) {
    ptx::mma_m16n8k16_f16_in_f16(s, q.r, k, s);
  }
  OCTAVO_DEVICE void read(float (&to)[4]) const {
    ptx::f32_from_f16x2(to[0], to[1], s[0]);
    ptx::f32_from_f16x2(to[2], to[3], s[1]);
  }
};

template <class G>
struct Products {
  using Operands = typename G::Operands;
  using Accumulator = typename Operands::Accumulator;
  using RowTile = typename G::RowTile;
  using Promotion = typename Softmax<G>::Promotion;
  static constexpr Sm80ForwardConfig C = G::C;
  static constexpr int kTilesM = G::kTilesM, kTilesN = G::kTilesN, kTilesD = G::kTilesD;

  using Lane = LaneAddress<row_bytes(C)>;
  static OCTAVO_DEVICE Lane q_lane(const RowTile& tile) {
    return Operands::q_lane(G::q_tile(), tile.warp_m * G::kRowsPerWarp, tile.lane);
  }

  static OCTAVO_DEVICE void load_q(typename G::QFragments& q, const RowTile& tile) {
    const Lane lane = q_lane(tile);
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int k = 0; k < G::kQkSteps; ++k) Operands::load_q(q.a[m][k], lane, m * 16, k);
    }
  }

  // Fragments of K for one step of columns and kKTiles tiles of keys.
  static constexpr int kKTiles = gcd_of(kTilesN, C.k_tiles);
  static_assert(kKTiles % 2 == 0, "keys are read in pairs of tiles");
  struct KGroup {
    FragmentB2 k[kKTiles / 2];
  };
  static OCTAVO_DEVICE void load_k(KGroup& f, const Lane& lane, int step, int first) {
    OCTAVO_UNROLL
    for (int n = 0; n < kKTiles; n += 2) Operands::load_k(f.k[n / 2], lane, (first + n) * 8, step);
  }

  // Fragments of Q for one step of columns: a copy of registers, or read from shared memory.
  struct QStep {
    FragmentA q[kTilesM];
  };
  static OCTAVO_DEVICE void load_q_step(QStep& f, const typename G::QFragments& q, const Lane& lane,
                                        int step) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      if constexpr (C.q_in_registers)
        f.q[m] = q.a[m][step];
      else
        Operands::load_q(f.q[m], lane, m * 16, step);
    }
  }

  // s = q k^T, unscaled: the exponential applies the scale.
  static OCTAVO_DEVICE void qk(typename G::Scores& scores, const typename G::QFragments& q,
                               const RowTile& tile, int stage) {
    constexpr int kGroups = kTilesN / kKTiles;
    constexpr int kItems = G::kQkSteps * kGroups;
    using Scores = ScoreAccumulator<Operands, C.f16_scores>;
    Scores s[kTilesM][kTilesN] = {};
    QStep fq[2];
    KGroup fk[2];
    const Lane lane_q = q_lane(tile);
    const Lane lane_k = Operands::k_lane(G::k_tile(stage), tile.warp_n * C.block_n, tile.lane);
    load_q_step(fq[0], q, lane_q, 0);
    load_k(fk[0], lane_k, 0, 0);
    OCTAVO_UNROLL
    for (int i = 0; i < kItems; ++i) {
      const int step = i / kGroups, group = i % kGroups;
      if (group == 0 && step + 1 < G::kQkSteps)
        load_q_step(fq[(step + 1) % 2], q, lane_q, step + 1);
      if (i + 1 < kItems)
        load_k(fk[(i + 1) % 2], lane_k, (i + 1) / kGroups, (i + 1) % kGroups * kKTiles);
      OCTAVO_UNROLL
      for (int n = 0; n < kKTiles; ++n) {
        OCTAVO_UNROLL
        for (int m = 0; m < kTilesM; ++m) {
          s[m][group * kKTiles + n].add(fq[step % 2].q[m], fk[i % 2].k[n / 2].r[n % 2]);
        }
      }
    }
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int n = 0; n < kTilesN; ++n) s[m][n].read(scores.s[m][n]);
    }
  }

  // V's fragments for one step of keys and kVTiles tiles of columns.
  static constexpr int kVTiles = gcd_of(kTilesD, C.v_tiles);
  static_assert(kVTiles % 2 == 0, "columns of V are read in pairs of tiles");
  struct VGroup {
    FragmentB2 v[kVTiles / 2];
  };
  using VLane = LaneAddress<v_row_bytes(C)>;
  static OCTAVO_DEVICE VLane v_lane(const RowTile& tile, int stage) {
    return Operands::v_lane(G::v_tile(stage), tile.warp_n * C.block_n, tile.lane);
  }
  static OCTAVO_DEVICE void load_v(VGroup& f, const VLane& lane, int step, int first) {
    OCTAVO_UNROLL
    for (int n = 0; n < kVTiles; n += 2)
      Operands::load_v(f.v[n / 2], lane, step * Operands::kPvKeys, (first + n) / 2);
  }

  // o += p v; the inner loop is over columns. The next group's fragments are read ahead of the mma,
  // and the probabilities of the next step are computed between the mma, register by register, so
  // that the tensor cores do not wait for the exponentials.
  static OCTAVO_DEVICE void pv(typename G::State& state, const typename G::Scores& scores,
                               const RowTile& tile, int stage) {
    constexpr int kGroups = kTilesD / kVTiles;
    constexpr int kItems = G::kPvSteps * kGroups;
    constexpr int kRegisters = 4 * kTilesM;  // registers of P in a step
    FragmentA p[2][kTilesM];
    const auto compute_p = [&](int step, int i) {
      p[step % 2][i / 4].r[i % 4] = Softmax<G>::probabilities(scores, state, step, i);
    };
    OCTAVO_UNROLL
    for (int i = 0; i < kRegisters; ++i) compute_p(0, i);
    VGroup f[2];
    const VLane lane = v_lane(tile, stage);
    load_v(f[0], lane, 0, 0);
    OCTAVO_UNROLL
    for (int i = 0; i < kItems; ++i) {
      const int step = i / kGroups, group = i % kGroups;
      if (i + 1 < kItems)
        load_v(f[(i + 1) % 2], lane, (i + 1) / kGroups, (i + 1) % kGroups * kVTiles);
      OCTAVO_UNROLL
      for (int n = 0; n < kVTiles; ++n) {
        const int column = group * kVTiles + n;
        OCTAVO_UNROLL
        for (int m = 0; m < kTilesM; ++m) {
          auto& o = state.o[m][column];
          Operands::mma_pv(o, p[step % 2][m], f[i % 2].v[n / 2].r[n % 2], o);
        }
        if (step + 1 == G::kPvSteps) continue;
        OCTAVO_UNROLL
        for (int r = column * kRegisters / kTilesD; r < (column + 1) * kRegisters / kTilesD; ++r)
          compute_p(step + 1, r);
      }
    }
  }

  // P packed to the format of the product before it starts: a quarter of the registers. With two
  // terms, the second holds the rounding error of the first.
  struct PFragments {
    FragmentA p[C.p_terms][kTilesM][G::kPvSteps];
  };
  static OCTAVO_DEVICE void pack(PFragments& f, typename G::Scores& scores) {
    OCTAVO_UNROLL
    for (int term = 0; term < C.p_terms; ++term) {
      OCTAVO_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        OCTAVO_UNROLL
        for (int step = 0; step < G::kPvSteps; ++step)
          Operands::pack_p(f.p[term][m][step], scores.s[m], step);
        if constexpr (C.p_terms > 1) {
          OCTAVO_UNROLL
          for (int n = 0; n < kTilesN; ++n) {
            Operands::subtract_packed(scores.s[m][n][0], scores.s[m][n][1]);
            Operands::subtract_packed(scores.s[m][n][2], scores.s[m][n][3]);
          }
        }
      }
    }
  }

  // 8-bit P V: a fresh accumulator for the block, a few columns at a time so that it and O fit,
  // is promoted with o = o * keep + t * add in FP32. FP8 products keep some 14 bits of their sum,
  // and INT8 products are in units of the block's own step, so neither may accumulate across
  // blocks.
  static OCTAVO_DEVICE void pv_promoted(typename G::State& state, typename G::Scores& scores,
                                        const Promotion& promotion, const RowTile& tile,
                                        int stage) {
    PFragments p;
    pack(p, scores);
    const VLane lane = v_lane(tile, stage);
    OCTAVO_UNROLL
    for (int first = 0; first < kTilesD; first += kVTiles) {
      Accumulator t[kTilesM][kVTiles][4] = {};
      OCTAVO_UNROLL
      for (int step = 0; step < G::kPvSteps; ++step) {
        VGroup f;
        load_v(f, lane, step, first);
        OCTAVO_UNROLL
        for (int n = 0; n < kVTiles; ++n) {
          OCTAVO_UNROLL
          for (int m = 0; m < kTilesM; ++m) {
            OCTAVO_UNROLL
            for (int term = 0; term < C.p_terms; ++term)
              Operands::mma_pv(t[m][n], p.p[term][m][step], f.v[n / 2].r[n % 2], t[m][n]);
          }
        }
      }
      promote(state, t, promotion, first);
    }
  }

  static OCTAVO_DEVICE void promote(typename G::State& state,
                                    const Accumulator (&t)[kTilesM][kVTiles][4],
                                    const Promotion& promotion, int first) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int n = 0; n < kVTiles; ++n) {
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) {
          float& o = state.o[m][first + n][e];
          const float block = to_float(t[m][n][e]) * promotion.add[m][e / 2];
          o = ptx::fused_multiply_add(o, promotion.keep[m][e / 2], block);
        }
      }
    }
  }
};

}  // namespace octavo::sm80
