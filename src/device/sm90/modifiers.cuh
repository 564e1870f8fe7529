// What happens to a block of scores between Q K^T and the softmax: softcap, bias, ALiBi and the
// mask tensor, and to a row sum at the end of a tile: the sink. Which of them a kernel can apply is
// a matter of its configuration; a null pointer, or a softcap of 0, skips one for the whole launch.
//
// The scores are in natural units afterwards, if anything but the mask may change them, and the
// softmax brings them to log2 units: a bias is then added by the multiply-add that scales.
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
  // From raw scores to natural units with softcap. Scores well below it take a polynomial, which
  // costs five multiply-adds. Which way a score takes depends on the score alone; a warp that has
  // no large ones skips the way of those.
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
    // Distances grow with the column where all columns are right of the diagonals, and fall where
    // all are left of them or the mask hides the others.
    bool left, right;
  };
  static OCTAVO_DEVICE Slopes slopes_of(const ScoreModifierParams& m, const Sm90ForwardParams& p,
                                        const RowTile& tile, i32 n) {
    Slopes of;
    of.left = of.right = true;
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      const i32 diagonal =
          tile.query(p, r) + (p.bottom_right ? tile.span.seqlen_kv - tile.span.seqlen_q : 0);
      const i32 distance = diagonal - n - static_cast<i32>(tile.lane % 4 * 2);
      of.slope[r] = starts_at_diagonal(C)
                        ? tile.alibi_slope
                        : alibi_slope<kOverlaps>(m, tile.sequence, Registers::head_of(p, tile, r));
      of.distance[r] = static_cast<float>(distance);
      of.left = of.left && (p.window_right == 0 || distance >= C.block_n);
      of.right = of.right && distance <= 0;
    }
    return of;
  }
  // Adds ALiBi to scores that `scale` brings to natural units. On one side of the diagonal a
  // column's term is the first column's and its offset times the slope.
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

  // The scores of the block that begins at key n. Each step asks for the tile: nothing about it is
  // then held in registers from one step to the next.
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

  // The sink of a head as one more term of a row's sum, which counts in units of 2^ref_max. Both
  // become those of the row with its sink; the result is the sum in the old units, which divides O.
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
