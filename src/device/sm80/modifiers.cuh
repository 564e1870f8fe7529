// SPDX-License-Identifier: Apache-2.0
// Modifiers of the score registers of one warp, between Q K^T and the mask: softcap, bias, ALiBi,
// mask tensor and the bits of a block mask, each if the configuration has it and the call gives it.
//
// Softcap, bias and ALiBi work in log2 units, so a kernel with one of them scales its scores here
// and not in the exponential. The instructions for one score on sm_80, of which a softcap has two
// on the special-function units:
//   scale 1; softcap 12; bias 2 in f16, 6 in bf16, 5 in f32; ALiBi 2; mask 2
// Bias and mask also need a load for every two columns, or for each if pairs are not aligned.
#pragma once

#include "config/shared_parts.h"
#include "device/core/score_modifiers.cuh"
#include "device/ptx/term.cuh"
#include "device/sm80/geometry.cuh"

namespace octavo::sm80 {

template <class G>
struct Modifiers {
  using Scores = typename G::Scores;
  using State = typename G::State;
  using RowTile = typename G::RowTile;
  static constexpr Sm80ForwardConfig C = G::C;
  static constexpr int kTilesM = G::kTilesM, kTilesN = G::kTilesN;

  // `key` is the block's first key.
  static OCTAVO_DEVICE void apply(Scores& scores, const State& state, const ForwardParams& params,
                                  const RowTile& tile, i32 key) {
    const ScoreModifierParams& p = G::modifiers(params).scores;
    if constexpr (changes_scores(C.modifiers)) to_log2(scores, state);
    if constexpr (C.modifiers.softcap) {
      if (p.softcap_log2 != 0) cap(scores, p);
    }
    if constexpr (C.modifiers.bias) {
      if (p.bias.data != nullptr) add_biases(scores, p.bias, tile, key);
    }
    if constexpr (C.modifiers.alibi) {
      if (p.alibi_slopes != nullptr) add_alibi(scores, params, tile, key);
    }
    if constexpr (C.modifiers.mask) {
      if (p.mask.data == nullptr) return;
      if (in_pairs(p.mask, tile, key))
        hide<true>(scores, p.mask, tile, key);
      else
        hide<false>(scores, p.mask, tile, key);
    }
  }

  // Hides the keys whose bits a block mask has not set; `entry` is the index of the block's table
  // of bits.
  static OCTAVO_DEVICE void hide_unset(Scores& scores, const BlockMaskParams& p,
                                       const RowTile& tile, i32 key, i32 entry) {
    constexpr int kSize = max_of(C.modifiers.block_mask, 32), kRowWords = kSize / 32;
    const i64 first_word = static_cast<i64>(entry) * kSize * kRowWords + key % kSize / 32;
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const i32 row = (tile.first_row + static_cast<i32>(tile.row(m, r))) % kSize;
        const u32* const words = p.bits + first_word + row * kRowWords;
        u32 word = 0;
        OCTAVO_UNROLL
        for (int n = 0; n < kTilesN; ++n) {
          if (n % 4 == 0) word = ptx::load_global_b32(words + n / 4) >> (tile.lane % 4 * 2);
          OCTAVO_UNROLL
          for (int e = 0; e < 2; ++e) {
            float& s = scores.s[m][n][r * 2 + e];
            const bool is_set = (word >> (n % 4 * 8 + e) & 1) != 0;
            s = ptx::mask_term(is_set, true) ? s : -kInfinity;
          }
        }
      }
    }
  }

 private:
  static OCTAVO_DEVICE void to_log2(Scores& scores, const State& state) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int n = 0; n < kTilesN; ++n) {
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) scores.s[m][n][e] *= state.raw_scale_of(m, e / 2);
      }
    }
  }

  static OCTAVO_DEVICE void cap(Scores& scores, const ScoreModifierParams& p) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int n = 0; n < kTilesN; ++n) {
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) scores.s[m][n][e] = apply_softcap(scores.s[m][n][e], p);
      }
    }
  }

  // Whether the block's columns may be read two at once: all of them exist, and vectors of the
  // tensor start at the sequence's even keys.
  static OCTAVO_DEVICE bool in_pairs(const ScoreTensorParams& t, const RowTile& tile, i32 key) {
    return t.pairs != 0 && tile.span.kv_begin % 2 == 0 && key + C.block_n <= tile.span.seqlen_kv;
  }

  // The tensor's element of a row and the block's first key. A row after the sequence reads its
  // last one.
  static OCTAVO_DEVICE i64 first_element(const ScoreTensorParams& t, const RowTile& tile, i32 key,
                                         int m, int r) {
    const i32 row =
        min_of(tile.first_row + static_cast<i32>(tile.row(m, r)), tile.span.seqlen_q - 1);
    return score_row_index(t, tile.batch, tile.head, tile.span.q_begin + row,
                           tile.span.kv_begin + key);
  }
  // A column of this thread, within the block. A key after the sequence reads the last one.
  static OCTAVO_DEVICE i32 column_of(const RowTile& tile, i32 key, int n, int e) {
    const i32 column = n * 8 + static_cast<i32>(tile.lane % 4 * 2) + e;
    return min_of(column, tile.span.seqlen_kv - 1 - key);
  }

  static OCTAVO_DEVICE void add_biases(Scores& scores, const ScoreTensorParams& bias,
                                       const RowTile& tile, i32 key) {
    const bool pairs = in_pairs(bias, tile, key);
    if (bias.element == Element::f32)
      pairs ? add_biases_of<Element::f32, true>(scores, bias, tile, key)
            : add_biases_of<Element::f32, false>(scores, bias, tile, key);
    else if (bias.element == Element::f16)
      pairs ? add_biases_of<Element::f16, true>(scores, bias, tile, key)
            : add_biases_of<Element::f16, false>(scores, bias, tile, key);
    else
      pairs ? add_biases_of<Element::bf16, true>(scores, bias, tile, key)
            : add_biases_of<Element::bf16, false>(scores, bias, tile, key);
  }

  template <Element kElement, bool kPairs>
  static OCTAVO_DEVICE void add_biases_of(Scores& scores, const ScoreTensorParams& bias,
                                          const RowTile& tile, i32 key) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const i64 first = first_element(bias, tile, key, m, r);
        OCTAVO_UNROLL
        for (int n = 0; n < kTilesN; ++n) {
          float values[2];
          if constexpr (kPairs) {
            const i64 at = first + n * 8 + tile.lane % 4 * 2;
            load_bias_pair<kElement>(bias.data, at, values[0], values[1]);
          } else {
            OCTAVO_UNROLL
            for (int e = 0; e < 2; ++e)
              values[e] =
                  load_bias<kElement>(bias.data, first + column_of(tile, key, n, e) * bias.column);
          }
          OCTAVO_UNROLL
          for (int e = 0; e < 2; ++e) {
            float& s = scores.s[m][n][r * 2 + e];
            s = add_bias<kElement>(s, values[e]);
          }
        }
      }
    }
  }

  static OCTAVO_DEVICE void add_alibi(Scores& scores, const ForwardParams& params,
                                      const RowTile& tile, i32 key) {
    const float slope = alibi_slope_log2(G::modifiers(params).scores, tile.sequence, tile.head);
    const i32 offset = params.bottom_right ? tile.span.seqlen_kv - tile.span.seqlen_q : 0;
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const i32 diagonal = tile.first_row + static_cast<i32>(tile.row(m, r)) + offset;
        apply_alibi_row<kTilesN>(scores.s[m][0], r, slope, diagonal - first_column(key, tile.lane));
      }
    }
  }

  template <bool kPairs>
  static OCTAVO_DEVICE void hide(Scores& scores, const ScoreTensorParams& mask, const RowTile& tile,
                                 i32 key) {
    const u8* const data = static_cast<const u8*>(mask.data);
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const i64 first = first_element(mask, tile, key, m, r);
        OCTAVO_UNROLL
        for (int n = 0; n < kTilesN; ++n) {
          u32 both = 0;
          if constexpr (kPairs)
            both = ptx::load_global_b16(data + first + n * 8 + tile.lane % 4 * 2);
          OCTAVO_UNROLL
          for (int e = 0; e < 2; ++e) {
            const u32 visible =
                kPairs
                    ? both & (0xffu << (e * 8))
                    : ptx::load_global_b8(data + first + column_of(tile, key, n, e) * mask.column);
            float& s = scores.s[m][n][r * 2 + e];
            s = ptx::mask_term(visible == 0, false) ? -kInfinity : s;
          }
        }
      }
    }
  }
};

}  // namespace octavo::sm80
