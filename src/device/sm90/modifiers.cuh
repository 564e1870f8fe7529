// SPDX-License-Identifier: Apache-2.0
// What happens to a block of scores between Q K^T and the softmax: softcap, bias, ALiBi and the
// mask tensor, and to a row sum at the end of a tile: the sink. The configuration says which of
// them a kernel can apply; a null pointer, or a softcap of 0, skips one for the whole launch.
//
// With a bias the scores are in natural units afterwards, and the softmax converts them to log2
// units: then one multiply-add scales a score and adds its bias. Without one, softcap and ALiBi are
// applied as part of the exponent (fused_modifiers.cuh).
#pragma once

#include "device/core/score_modifiers.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/term.cuh"
#include "device/sm90/fused_modifiers.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/params.cuh"
#include "device/sm90/score_loads.cuh"
#include "device/sm90/score_registers.cuh"
#include "device/sm90/score_tiles.cuh"

namespace octavo::sm90 {

// How a kernel reads bias and mask.
template <class G, bool kTiles = G::C.modifiers.score_tiles>
struct SelectScoreTensors {
  using Type = ScoreLoads<G>;
};
template <class G>
struct SelectScoreTensors<G, true> {
  using Type = ScoreTiles<G>;
};

template <class G>
struct ScoreModifier {
  using RowTile = typename G::RowTile;
  using Tensors = typename SelectScoreTensors<G>::Type;
  using Registers = ScoreRegisters<G>;
  static constexpr Sm90ForwardConfig C = G::C;
  static constexpr bool kOverlaps = Registers::kOverlaps;
  static constexpr bool kChangesBlocks = changes_scores(C.modifiers) || C.modifiers.mask;

  // --- softcap and ALiBi ------------------------------------------------------------------------

  // Converts raw scores to log2 units with softcap. A warp without large scores skips the code for
  // those.
  static OCTAVO_DEVICE void cap(float* s, const ScoreModifierParams& m, float scale_log2) {
    const SoftcapPolynomial& series = m.softcap_series;
    if (!ptx::warp_any(has_large(s, 0, G::kScoreN8, series)))
      Registers::for_each_score(
          s, [&](u32, int, float& score) { score *= softcap_factor(score, series); });
    else
      Registers::for_each_score(s, [&](u32, int, float& score) {
        const float finite = score == -kInfinity ? kLowest : score;  // no score is hidden yet
        score = capped_plus(finite, m, scale_log2, 0);
      });
  }

  // ALiBi of the thread's two rows of a tile; without ALiBi the slopes are 0.
  struct Alibi {
    float slope[2];   // in natural units
    i32 diagonal[2];  // the key of the row's diagonal minus the thread's column of every eight
  };
  static OCTAVO_DEVICE Alibi alibi_of(const Sm90ForwardParams& p, const RowTile& tile) {
    Alibi alibi;
    const ScoreModifierParams& m = G::modifiers(p).scores;
    const bool has_alibi = C.modifiers.alibi && m.alibi_slopes != nullptr;
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      alibi.slope[r] =
          !has_alibi ? 0
          : starts_at_diagonal(C)
              ? tile.alibi_slope
              : alibi_slope<kOverlaps>(m, tile.sequence, Registers::head_of(p, tile, r));
      alibi.diagonal[r] = tile.query(p, r) +
                          (p.bottom_right ? tile.span.seqlen_kv - tile.span.seqlen_q : 0) -
                          static_cast<i32>(tile.lane % 4 * 2);
    }
    return alibi;
  }
  // The same for the block that begins at key n.
  struct Slopes {
    float slope[2];     // in natural units
    float distance[2];  // from the thread's first column to the row's diagonal
    // Whether all columns are left of the diagonals or hidden, or all right of them: distances then
    // fall, or grow, with the column.
    bool left, right;
  };
  static OCTAVO_DEVICE Slopes slopes_of(const Alibi& alibi, const Sm90ForwardParams& p, i32 n) {
    const i32 distance[2] = {alibi.diagonal[0] - n, alibi.diagonal[1] - n};
    const i32 least = min_of(distance[0], distance[1]), most = max_of(distance[0], distance[1]);
    return {.slope = {alibi.slope[0], alibi.slope[1]},
            .distance = {static_cast<float>(distance[0]), static_cast<float>(distance[1])},
            .left = p.window_right == 0 || least >= C.block_n,
            .right = most <= 0};
  }
  // Adds ALiBi to scores that `scale` converts to natural units. On one side of the diagonal a
  // column's term is the first column's plus the slope times the offset.
  static OCTAVO_DEVICE void add_alibi(float* s, float scale, const Slopes& alibi) {
    if (alibi.left || alibi.right) {
      float slope[2], first[2];
      OCTAVO_UNROLL
      for (u32 r = 0; r < 2; ++r) {
        slope[r] = alibi.left ? alibi.slope[r] : -alibi.slope[r];
        first[r] = -slope[r] * alibi.distance[r];
      }
      Registers::for_each_score(s, [&](u32 r, int column, float& score) {
        const float with_first = ptx::fused_multiply_add(score, scale, first[r]);
        score = ptx::fused_multiply_add(slope[r], static_cast<float>(column), with_first);
      });
    } else {
      Registers::for_each_score(s, [&](u32 r, int column, float& score) {
        score = apply_alibi(score * scale, alibi.slope[r],
                            alibi.distance[r] - static_cast<float>(column));
      });
    }
  }

  // --- a block, and a row at the end ------------------------------------------------------------

  // Applies the modifiers to the block that begins at key n, or prepares them for the exponent
  // (fused_modifiers.cuh). Each step calls tile_of() again, so that nothing about the tile stays in
  // registers from step to step.
  template <class Scores, class TileOf>
  static OCTAVO_DEVICE void apply(Scores& scores, const Sm90ForwardParams& p, i32 n,
                                  const Alibi& alibi, TileOf&& tile_of) {
    const ScoreModifierParams& m = G::modifiers(p).scores;
    float* const s = scores.s;
    if constexpr (fuses_modifiers(C))
      prepare(scores.modifiers, m, p.scale_log2, slopes_of(alibi, p, n));
    else if (changes_scores(C.modifiers))
      to_natural(s, m, p, n, alibi, tile_of);
    if (C.modifiers.mask && m.mask.data != nullptr)
      Tensors::hide_masked(s, m.mask, p, tile_of(), n);
  }
  static OCTAVO_DEVICE void prepare(FusedModifiers<G>& fused, const ScoreModifierParams& m,
                                    float scale_log2, const Slopes& slopes) {
    fused.m = &m;
    fused.scale_log2 = scale_log2;
    fused.left = slopes.left;
    fused.linear = !C.modifiers.alibi || !ptx::warp_any(!slopes.left && !slopes.right);
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r) {
      fused.slope[r] = slopes.slope[r] * kLog2E;
      fused.distance[r] = slopes.distance[r];
    }
  }
  // With a bias.
  template <class TileOf>
  static OCTAVO_DEVICE void to_natural(float* s, const ScoreModifierParams& m,
                                       const Sm90ForwardParams& p, i32 n, const Alibi& alibi,
                                       TileOf&& tile_of) {
    float scale = p.scale_log2 * kLn2;  // what the scores still have to be multiplied by
    const bool has_bias = m.bias.data != nullptr;
    const bool has_alibi = C.modifiers.alibi && m.alibi_slopes != nullptr;
    if (C.modifiers.softcap) {
      cap(s, m, p.scale_log2);
      scale = kLn2;
    }
    if (has_bias) {
      Tensors::add_bias(s, scale, m.bias, p, tile_of(), n);
      scale = 1;
    }
    if (has_alibi)
      add_alibi(s, scale, slopes_of(alibi, p, n));
    else if (!has_bias)
      Registers::for_each_score(s, [&](u32, int, float& score) { score *= scale; });
  }

  // Adds the sink of a head to a row's sum, in units of 2^ref_max, and raises ref_max to the sink
  // if that is larger. Returns the new sum in the old units, which divides O.
  static OCTAVO_DEVICE float add_sink(const Sm90ForwardParams& p, i32 head, float& ref_max,
                                      float& sum) {
    const float* const sinks = G::modifiers(p).scores.sinks;
    if (sinks == nullptr) return sum;
    const float sink_log2 = kLog2E * load_modifier<kOverlaps>(sinks + head);
    const float divisor = sum + ptx::exp2_approx(sink_log2 - ref_max);
    float keep;
    const float term = sink_term(sink_log2, ref_max, keep);
    sum = ptx::fused_multiply_add(sum, keep, term);
    return divisor;
  }
};

}  // namespace octavo::sm90
