// SPDX-License-Identifier: Apache-2.0
// What happens to a block of scores between Q K^T and the softmax: softcap, bias, ALiBi and the
// mask tensor, and to a row sum at the end of a tile: the sink. The configuration says which of
// them a kernel can apply; a null pointer, or a softcap of 0, skips one for the whole launch.
//
// If anything but the mask may change the scores, they are in natural units afterwards, and the
// softmax converts them to log2 units: then one multiply-add scales a score and adds its bias.
#pragma once

#include "device/core/score_modifiers.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/term.cuh"
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

  // Whether all scores are at most `limit` in magnitude. The bits of positive floats order as
  // integers, and those of negative ones as unsigned integers above all positive ones; the ALU has
  // three-way maxima of both.
  static OCTAVO_DEVICE bool are_within(const float* s, float limit) {
    i32 most = 0;
    u32 least = 0;
    OCTAVO_UNROLL
    for (int i = 0; i < G::kScores; i += 2) {
      const u32 a = ptx::bits_of(s[i]), b = ptx::bits_of(s[i + 1]);
      most = max_of(max_of(most, static_cast<i32>(a)), static_cast<i32>(b));
      least = max_of(max_of(least, a), b);
    }
    return max_of(static_cast<u32>(most), least & 0x7fffffffu) <= ptx::bits_of(limit);
  }
  // Converts raw scores to natural units with softcap. Small scores use a polynomial, which costs
  // five multiply-adds. The formula depends on the score alone; a warp without large scores skips
  // the code for those.
  static OCTAVO_DEVICE void cap(float* s, const ScoreModifierParams& m, float scale_log2) {
    const SoftcapPolynomial& series = m.softcap_series;
    if (!ptx::warp_any(!are_within(s, series.limit))) {
      Registers::for_each_score(
          s, [&](u32, int, float& score) { score = apply_softcap_polynomial(score, series); });
      return;
    }
    const float softcap = m.softcap_log2 * kLn2;
    Registers::for_each_score(s, [&](u32, int, float& score) {
      const float large = softcap * tanh_large(score * scale_log2 * m.inverse_softcap_log2);
      const float small = apply_softcap_polynomial(score, series);
      score = ptx::abs_f32(score) <= series.limit ? small : large;
    });
  }

  // ALiBi of the thread's two rows.
  struct Slopes {
    float slope[2];     // in natural units
    float distance[2];  // from the thread's first column to the row's diagonal
    // Whether all columns are left of the diagonals or hidden, or all right of them: distances then
    // fall, or grow, with the column.
    bool left, right;
  };
  static OCTAVO_DEVICE Slopes slopes_of(const ScoreModifierParams& m, const Sm90ForwardParams& p,
                                        const RowTile& tile, i32 n) {
    Slopes slopes;
    slopes.left = slopes.right = true;
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      const i32 diagonal =
          tile.query(p, r) + (p.bottom_right ? tile.span.seqlen_kv - tile.span.seqlen_q : 0);
      const i32 distance = diagonal - n - static_cast<i32>(tile.lane % 4 * 2);
      slopes.slope[r] =
          starts_at_diagonal(C)
              ? tile.alibi_slope
              : alibi_slope<kOverlaps>(m, tile.sequence, Registers::head_of(p, tile, r));
      slopes.distance[r] = static_cast<float>(distance);
      slopes.left = slopes.left && (p.window_right == 0 || distance >= C.block_n);
      slopes.right = slopes.right && distance <= 0;
    }
    return slopes;
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

  // Applies the modifiers to the block that begins at key n. Each step calls tile_of() again, so
  // that nothing about the tile stays in registers from step to step.
  template <class TileOf>
  static OCTAVO_DEVICE void apply(float* s, const Sm90ForwardParams& p, i32 n, TileOf&& tile_of) {
    const ScoreModifierParams& m = G::modifiers(p).scores;
    if (changes_scores(C.modifiers)) to_natural(s, m, p, n, tile_of);
    if (C.modifiers.mask && m.mask.data != nullptr)
      Tensors::hide_masked(s, m.mask, p, tile_of(), n);
  }
  template <class TileOf>
  static OCTAVO_DEVICE void to_natural(float* s, const ScoreModifierParams& m,
                                       const Sm90ForwardParams& p, i32 n, TileOf&& tile_of) {
    float scale = p.scale_log2 * kLn2;  // what the scores still have to be multiplied by
    const bool has_bias = C.modifiers.bias && m.bias.data != nullptr;
    const bool has_alibi = C.modifiers.alibi && m.alibi_slopes != nullptr;
    if (C.modifiers.softcap) {
      cap(s, m, p.scale_log2);
      scale = 1;
    }
    if (has_bias) {
      Tensors::add_bias(s, scale, m.bias, p, tile_of(), n);
      scale = 1;
    }
    if (has_alibi)
      add_alibi(s, scale, slopes_of(m, p, tile_of(), n));
    else if (!C.modifiers.softcap && !has_bias)
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
