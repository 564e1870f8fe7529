// SPDX-License-Identifier: Apache-2.0
// The matrix products of one step of the backward pass, and the weights between them.
//
//   s  = own[0] streamed[0]^T     scores: Q K^T (dq), or K Q^T, its transpose (dkv)
//   dp = own[1] streamed[1]^T     dO V^T, or V dO^T
//   p  = exp2(s * scale_log2 - lse_log2),  ds = p * (dp - delta)
//   gradient[0] += ds streamed[0]   dQ += dS K, or dK += dS^T Q
//   gradient[1] += p streamed[1]    dV += P^T dO
//
// The accumulators of the first two products are the A operands of the last two, because both
// passes have their owned rows as rows of s: nothing is transposed through shared memory.
#pragma once

#include "device/ptx/math.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/sm80/backward_geometry.cuh"

namespace octavo::sm80 {

template <class G>
struct BackwardProducts {
  using Operands = typename G::Operands;
  using Tile = typename G::Tile;
  using Lane = typename G::Lane;
  using WorkTile = typename G::WorkTile;
  using Scores = typename G::Scores;
  using Weights = typename G::Weights;
  using Gradient = typename G::Gradient;
  using OwnFragments = typename G::OwnFragments;
  static constexpr Sm80BackwardConfig C = G::C;
  static constexpr int kTilesM = G::kTilesM, kTilesN = G::kTilesN, kTilesD = G::kTilesD;

  static OCTAVO_DEVICE Lane own_lane(int operand, const WorkTile& tile) {
    return Operands::q_lane(G::own_tile(operand), tile.warp * G::kRowsPerWarp, tile.lane);
  }
  static OCTAVO_DEVICE void load_own(OwnFragments& own, int operand, const WorkTile& tile) {
    const Lane lane = own_lane(operand, tile);
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int step = 0; step < G::kHeadSteps; ++step)
        Operands::load_q(own.a[m][step], lane, m * 16, step);
    }
  }

  // Fragments of one step of columns.
  struct Step {
    FragmentA own[kTilesM];
    FragmentB2 streamed[kTilesN / 2];
  };
  static OCTAVO_DEVICE void load_step(Step& f, const OwnFragments& own, const Lane& own_at,
                                      const Lane& streamed_at, int step) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      if constexpr (C.own_in_registers)
        f.own[m] = own.a[m][step];
      else
        Operands::load_q(f.own[m], own_at, m * 16, step);
    }
    OCTAVO_UNROLL
    for (int n = 0; n < kTilesN; n += 2)
      Operands::load_k(f.streamed[n / 2], streamed_at, n * 8, step);
  }

  // scores = own streamed^T. The next step's fragments are read ahead of the mma.
  static OCTAVO_DEVICE void row_products(Scores& scores, const OwnFragments& own, int operand,
                                         const WorkTile& tile, int stage) {
    const Lane own_at = own_lane(operand, tile);
    const Lane streamed_at = Operands::k_lane(G::streamed_tile(operand, stage),
                                              static_cast<u32>(tile.first_column()), tile.lane);
    Step f[2];
    load_step(f[0], own, own_at, streamed_at, 0);
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int n = 0; n < kTilesN; ++n) {
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) scores.x[m][n][e] = 0;
      }
    }
    OCTAVO_UNROLL
    for (int step = 0; step < G::kHeadSteps; ++step) {
      if (step + 1 < G::kHeadSteps)
        load_step(f[(step + 1) % 2], own, own_at, streamed_at, step + 1);
      OCTAVO_UNROLL
      for (int n = 0; n < kTilesN; ++n) {
        OCTAVO_UNROLL
        for (int m = 0; m < kTilesM; ++m) {
          auto& x = scores.x[m][n];
          Operands::mma_qk(x, f[step % 2].own[m], f[step % 2].streamed[n / 2].r[n % 2], x);
        }
      }
    }
  }

  // lse_log2 and delta of the queries of a tile of scores: of the thread's rows (dq), which stay
  // the same in every step, or of its columns (dkv), read from the stage's shared memory.
  struct Stats {
    float lse_log2[kTilesM][2];
    float delta[kTilesM][2];
  };
  static OCTAVO_DEVICE void load_row_stats(Stats& stats, const BackwardParams& p,
                                           const WorkTile& tile) {
    const i64 first =
        (static_cast<i64>(tile.sequence) * p.heads_q + tile.head) * p.stats_rows + tile.first_row;
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        stats.lse_log2[m][r] = ptx::load_global_f32(p.lse_log2 + first + tile.row(m, r));
        stats.delta[m][r] = ptx::load_global_f32(p.delta + first + tile.row(m, r));
      }
    }
  }
  static OCTAVO_DEVICE void load_column_stats(float (&x)[2], u32 array, const WorkTile& tile,
                                              int n) {
    const u32 column = static_cast<u32>(tile.first_column() + n * 8) + tile.lane % 4 * 2;
    u32 bits[2];
    ptx::load_shared_b64(array + column * 4, bits[0], bits[1]);
    x[0] = ptx::float_of_bits(bits[0]);
    x[1] = ptx::float_of_bits(bits[1]);
  }

  // s becomes p.
  static OCTAVO_DEVICE void exponentiate(Scores& s, const Stats& stats, float scale_log2,
                                         const WorkTile& tile, int stage) {
    OCTAVO_UNROLL
    for (int n = 0; n < kTilesN; ++n) {
      float column[2];
      if constexpr (G::kOwnsKeys) load_column_stats(column, G::stats_address(stage), tile, n);
      OCTAVO_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) {
          const float lse_log2 = G::kOwnsKeys ? column[e % 2] : stats.lse_log2[m][e / 2];
          s.x[m][n][e] =
              ptx::exp2_approx(ptx::fused_multiply_add(s.x[m][n][e], scale_log2, -lse_log2));
        }
      }
    }
  }

  // dp becomes ds.
  static OCTAVO_DEVICE void score_gradients(Scores& dp, const Scores& p, const Stats& stats,
                                            const WorkTile& tile, int stage) {
    OCTAVO_UNROLL
    for (int n = 0; n < kTilesN; ++n) {
      float column[2];
      if constexpr (G::kOwnsKeys)
        load_column_stats(column, G::stats_address(stage) + C.block_m * 4, tile, n);
      OCTAVO_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) {
          const float delta = G::kOwnsKeys ? column[e % 2] : stats.delta[m][e / 2];
          dp.x[m][n][e] = p.x[m][n][e] * (dp.x[m][n][e] - delta);
        }
      }
    }
  }

  // Sets p and ds of pairs outside the mask to zero, whatever they hold: a row beyond the end of
  // its sequence, or a NaN in a row that does not see this key, must not reach a gradient.
  // `first`: the first streamed row of the block.
  static OCTAVO_DEVICE void apply_mask(Scores& p, Scores& ds, const WorkTile& tile, i32 first) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const i32 row = tile.first_row + static_cast<i32>(tile.row(m, r));
        const KeyLimits seen = key_limits(tile.mask, tile.span, row);
        const i32 first_column = first + tile.first_column() + static_cast<i32>(tile.lane % 4 * 2);
        const i32 begin = ptx::mask_term(seen.begin - first_column, -G::kStreamedRows);
        const i32 end = ptx::mask_term(seen.end - first_column, 2 * G::kStreamedRows);
        OCTAVO_UNROLL
        for (int n = 0; n < kTilesN; ++n) {
          OCTAVO_UNROLL
          for (int e = 0; e < 2; ++e) {
            const i32 column = n * 8 + e;
            const bool visible = column >= begin && column < end;
            float& p_at = p.x[m][n][r * 2 + e];
            float& ds_at = ds.x[m][n][r * 2 + e];
            p_at = visible ? p_at : 0.0f;
            ds_at = visible ? ds_at : 0.0f;
          }
        }
      }
    }
  }

  // Register i of the A operand of columns 16 step to 16 step + 15.
  static OCTAVO_DEVICE u32 packed(const Scores& scores, int m, int step, int i) {
    const float(&x)[4] = scores.x[m][step * 2 + i / 2];
    return Operands::pack_pair(x[i % 2 * 2], x[i % 2 * 2 + 1]);
  }
  static OCTAVO_DEVICE u32 packed(const typename G::PackedScores& scores, int m, int step, int i) {
    return scores.x[m][step * 2 + i / 2][i % 2];
  }
  template <class AnyScores>
  static OCTAVO_DEVICE void pack(Weights& weights, const AnyScores& scores) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int step = 0; step < kTilesN / 2; ++step) {
        OCTAVO_UNROLL
        for (int i = 0; i < 4; ++i) weights.a[m][step].r[i] = packed(scores, m, step, i);
      }
    }
  }

  // With several warps along the columns of the gradients, each computes some columns of the
  // scores and needs all of them: they go through shared memory.
  template <class AnyScores>
  static OCTAVO_DEVICE void store_weights(const AnyScores& scores, int weights,
                                          const WorkTile& tile) {
    const auto to = G::weight_tile(weights);
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int step = 0; step < kTilesN / 2; ++step) {
        OCTAVO_UNROLL
        for (int i = 0; i < 4; ++i) {
          const u32 column =
              static_cast<u32>(tile.first_column() + step * 16 + i / 2 * 8) + tile.lane % 4 * 2;
          ptx::store_shared_b32(to.byte_address(tile.row(m, i % 2), column * 2),
                                packed(scores, m, step, i));
        }
      }
    }
  }
  static OCTAVO_DEVICE void load_weights(Weights& f, int weights, const WorkTile& tile) {
    const auto lane =
        Operands::q_lane(G::weight_tile(weights), tile.warp * G::kRowsPerWarp, tile.lane);
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int step = 0; step < G::kStreamedSteps; ++step)
        Operands::load_q(f.a[m][step], lane, m * 16, step);
    }
  }

  // Columns whose fragments are read together, one group ahead of the mma that use them.
  static constexpr int kGroupTiles = gcd_of(kTilesD, 4);
  static_assert(kGroupTiles % 2 == 0, "columns are read in pairs of tiles");
  struct ColumnGroup {
    FragmentB2 streamed[kGroupTiles / 2];
  };
  static OCTAVO_DEVICE void load_group(ColumnGroup& f, const Lane& lane, int step, int group) {
    OCTAVO_UNROLL
    for (int n = 0; n < kGroupTiles; n += 2)
      Operands::load_v(f.streamed[n / 2], lane, step * 16,
                       (group * kGroupTiles + n) / 2 * C.warps_d);
  }

  // gradient += weights streamed
  static OCTAVO_DEVICE void accumulate(Gradient& gradient, const Weights& weights, int operand,
                                       const WorkTile& tile, int stage) {
    constexpr int kGroups = kTilesD / kGroupTiles;
    constexpr int kItems = G::kStreamedSteps * kGroups;
    const Lane lane(G::streamed_tile(operand, stage), tile.lane % 16,
                    tile.lane / 16 + tile.warp_d * 2);
    ColumnGroup f[2];
    load_group(f[0], lane, 0, 0);
    OCTAVO_UNROLL
    for (int i = 0; i < kItems; ++i) {
      const int step = i / kGroups, group = i % kGroups;
      if (i + 1 < kItems) load_group(f[(i + 1) % 2], lane, (i + 1) / kGroups, (i + 1) % kGroups);
      OCTAVO_UNROLL
      for (int n = 0; n < kGroupTiles; ++n) {
        OCTAVO_UNROLL
        for (int m = 0; m < kTilesM; ++m) {
          auto& x = gradient.x[m][group * kGroupTiles + n];
          Operands::mma_pv(x, weights.a[m][step], f[i % 2].streamed[n / 2].r[n % 2], x);
        }
      }
    }
  }
};

}  // namespace octavo::sm80
