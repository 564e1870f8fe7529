// SPDX-License-Identifier: Apache-2.0
// The weights of a block whose scores have modifiers: from s = q k^T, with x = scale * s in log2
// units,
//
//   x' = softcap * tanh(x / softcap) + bias - slope * |distance|        p = exp2(x' - lse_log2)
//   ds = p * (dp - delta)                  gradient of x': ds;  of x: ds * (1 - tanh^2)
//
// P is rounded before it is multiplied by the derivative of the softcap: dV needs P itself, dK and
// dQ the product, and nothing else is kept for each score. A pair outside the mask, or hidden by
// the mask tensor, a block mask or a bias of -infinity, has p = 0 whatever its score is, and p = 0
// makes ds 0 whatever dp is.
#pragma once

#include "device/core/score_modifiers.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/term.cuh"
#include "device/sm80/backward_cursor.cuh"
#include "device/sm80/backward_geometry.cuh"
#include "device/sm80/backward_products.cuh"

namespace octavo::sm80 {

template <class G>
struct BackwardModifiers {
  using Products = BackwardProducts<G>;
  using WorkTile = typename G::WorkTile;
  using Scores = typename G::Scores;
  using PackedScores = typename G::PackedScores;
  using Stats = typename Products::Stats;
  static constexpr Sm80BackwardConfig C = G::C;
  static constexpr int kTilesM = G::kTilesM, kTilesN = G::kTilesN;

  // A block of scores: the owned rows of a tile by the streamed rows from `first` on, of one query
  // head.
  struct Block {
    i32 head, first;
    int stage;
    i32 bits = -1;  // the index of its table of bits in a block mask, -1 without
  };

  // s becomes p times the derivative of the softcap; `packed` receives p (dkv).
  static OCTAVO_DEVICE void find_p(Scores& s, PackedScores& packed, const Stats& stats,
                                   const BackwardParams& p, const WorkTile& tile,
                                   const Block& block) {
    if constexpr (!C.modifiers.bias) {
      find_p_of<Element::f32>(s, packed, stats, p, tile, block);
    } else {
      const Element element = G::modifiers(p).scores.bias.element;
      if (element == Element::f32)
        find_p_of<Element::f32>(s, packed, stats, p, tile, block);
      else if (element == Element::f16)
        find_p_of<Element::f16>(s, packed, stats, p, tile, block);
      else
        find_p_of<Element::bf16>(s, packed, stats, p, tile, block);
    }
  }

  // dp becomes ds, where p is what find_p() left.
  static OCTAVO_DEVICE void find_ds(Scores& dp, const Scores& p, const Stats& stats,
                                    const WorkTile& tile, int stage) {
    OCTAVO_UNROLL
    for (int n = 0; n < kTilesN; ++n) {
      float column[2];
      if constexpr (G::kOwnsKeys)
        Products::load_column_stats(column, G::stats_address(stage) + C.block_m * 4, tile, n);
      OCTAVO_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) {
          const float delta = G::kOwnsKeys ? column[e % 2] : stats.delta[m][e / 2];
          const float weight = p.x[m][n][e];
          const float ds = weight * (dp.x[m][n][e] - delta);
          dp.x[m][n][e] = ptx::mask_term(weight == 0, false) ? 0.0f : ds;
        }
      }
    }
  }

 private:
  // A thread's row of a bias or a mask in a block: its element of the block's column 0, and the
  // step from one column to the next. Columns of the block are keys (dq) or queries (dkv).
  struct TensorRow {
    i64 first;
    i64 step;
  };
  static OCTAVO_DEVICE TensorRow tensor_row(const ScoreTensorParams& t, const WorkTile& tile,
                                            const Block& block, i32 own) {
    // A row behind the sequence reads its last one, one before it its first one.
    const i64 row = tile.span.q_begin + max_of(min_of(own, tile.span.seqlen_q - 1), 0);
    const i64 column = tile.span.kv_begin;
    const i64 at = tile.batch * t.batch + block.head * t.head;
    if constexpr (G::kOwnsKeys) return {at + row * t.column + column * t.row, t.row};
    return {at + row * t.row + column * t.column, t.column};
  }
  // The column of the sequence that is read for column `column` of it.
  static OCTAVO_DEVICE i32 existing_column(const WorkTile& tile, i32 column) {
    return max_of(min_of(column, tile.span.seqlen_kv - 1), 0);
  }

  // Capped scores in log2 units, and the derivative of the softcap.
  static OCTAVO_DEVICE float cap(float score_log2, const ScoreModifierParams& m,
                                 float& derivative) {
    const float t = tanh_f32(score_log2 * m.inverse_softcap_log2);
    derivative = ptx::fused_multiply_add(-t, t, 1.0f);
    return m.softcap_log2 * t;
  }

  template <Element kBias>
  static OCTAVO_DEVICE void find_p_of(Scores& s, PackedScores& packed, const Stats& stats,
                                      const BackwardParams& p, const WorkTile& tile,
                                      const Block& block) {
    const ScoreModifierParams& mod = G::modifiers(p).scores;
    float slope = 0;
    if constexpr (C.modifiers.alibi) {
      if (mod.alibi_slopes != nullptr) slope = alibi_slope_log2(mod, tile.sequence, block.head);
    }
    [[maybe_unused]] BlockBits<G> bits;
    if constexpr (C.modifiers.block_mask != 0)
      bits.load(G::block_mask(p), tile, block.first, block.bits);
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const i32 own = tile.first_row + static_cast<i32>(tile.row(m, r));
        const Row row = row_of(p, tile, block, own);
        OCTAVO_UNROLL
        for (int n = 0; n < kTilesN; ++n) {
          float lse_log2[2] = {stats.lse_log2[m][r], stats.lse_log2[m][r]};
          if constexpr (G::kOwnsKeys)
            Products::load_column_stats(lse_log2, G::stats_address(block.stage), tile, n);
          float weight[2];
          OCTAVO_UNROLL
          for (int e = 0; e < 2; ++e) {
            float& x = s.x[m][n][r * 2 + e];
            float derivative = 1;
            float score =
                modified<kBias>(x * p.scale_log2, mod, tile, row, slope, n * 8 + e, derivative);
            if constexpr (C.modifiers.block_mask != 0)
              score = bits.is_set(tile, block.first, m, r, n, e) ? score : -kInfinity;
            weight[e] = ptx::exp2_approx(score - lse_log2[e]);
            x = weight[e];
            if constexpr (C.modifiers.softcap && C.pass != BackwardPass::dbias)
              x = weight[e] == 0 ? 0.0f : weight[e] * derivative;
          }
          if constexpr (G::kOwnsKeys)
            packed.x[m][n][r] = G::Operands::pack_pair(weight[0], weight[1]);
        }
      }
    }
  }

  // One of the thread's rows.
  struct Row {
    i32 begin, end;    // of the columns that it sees, from first_column on
    i32 first_column;  // the thread's first column of the block, within the sequence
    float distance;    // from the row's diagonal to it
    TensorRow bias, mask;
  };
  static OCTAVO_DEVICE Row row_of(const BackwardParams& p, const WorkTile& tile, const Block& block,
                                  i32 own) {
    const ScoreModifierParams& mod = G::modifiers(p).scores;
    const KeyLimits seen = key_limits(tile.mask, tile.span, own);
    Row row;
    row.first_column = block.first + tile.first_column() + static_cast<i32>(tile.lane % 4 * 2);
    row.begin = ptx::mask_term(seen.begin - row.first_column, -G::kStreamedRows);
    row.end = ptx::mask_term(seen.end - row.first_column, 2 * G::kStreamedRows);
    if constexpr (C.pass == BackwardPass::dbias) {
      if (ptx::mask_term(own < 0, false) || ptx::mask_term(own >= tile.span.seqlen_q, false))
        row.end = row.begin;
    }
    const i32 offset = p.bottom_right ? tile.span.seqlen_kv - tile.span.seqlen_q : 0;
    if constexpr (C.modifiers.alibi)
      row.distance = ptx::float_of_int(own + offset - row.first_column);
    if constexpr (C.modifiers.bias) row.bias = tensor_row(mod.bias, tile, block, own);
    if constexpr (C.modifiers.mask) row.mask = tensor_row(mod.mask, tile, block, own);
    return row;
  }

  // The modified score of one column, or -infinity if the row does not see it.
  template <Element kBias>
  static OCTAVO_DEVICE float modified(float score, const ScoreModifierParams& mod,
                                      const WorkTile& tile, const Row& row, float slope, int column,
                                      float& derivative) {
    bool visible = column >= row.begin && column < row.end;
    if constexpr (C.modifiers.softcap) score = cap(score, mod, derivative);
    if constexpr (C.modifiers.bias) {
      float bias = 0;
      const i64 at = existing_column(tile, row.first_column + column) * row.bias.step;
      if (mod.bias.data != nullptr) bias = load_bias<kBias>(mod.bias.data, row.bias.first + at);
      visible = visible && bias != -kInfinity;
      score = add_bias<kBias>(score, bias);
    }
    if constexpr (C.modifiers.alibi)
      score = apply_alibi(score, slope, row.distance - static_cast<float>(column));
    if constexpr (C.modifiers.mask) {
      const i64 at = existing_column(tile, row.first_column + column) * row.mask.step;
      if (mod.mask.data != nullptr)
        visible = visible && ptx::load_global_b8(static_cast<const u8*>(mod.mask.data) +
                                                 row.mask.first + at) != 0;
    }
    return ptx::mask_term(visible, true) ? score : -kInfinity;
  }
};

}  // namespace octavo::sm80
