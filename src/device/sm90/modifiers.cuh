// What happens to a block of scores between Q K^T and the softmax: softcap, bias, ALiBi and the
// mask tensor, and to a row sum at the end of a tile: the sink. Which of them a kernel can apply is
// a matter of its configuration; a null pointer, or a softcap of 0, skips one for the whole launch.
//
// The scores are in log2 units afterwards, if anything but the mask may change them, and the
// softmax multiplies them by 1. A thread reads of bias and mask what belongs to its own scores: two
// neighbouring columns of every eight, of two rows.
#pragma once

#include "device/core/score_modifiers.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/term.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/params.cuh"

namespace octavo::sm90 {

template <class G>
struct ScoreModifier {
  using RowTile = typename G::RowTile;
  static constexpr Sm90ForwardConfig C = G::C;
  static constexpr bool kOverlaps = true;  // the grid may start before an earlier one has ended
  static constexpr bool kChangesBlocks = changes_scores(C) || C.mask;

  // Calls use(i, e, score) for the thread's scores of row r: columns 8 i + e.
  template <class Use>
  static OCTAVO_DEVICE void for_each_score(float* s, u32 r, Use&& use) {
    OCTAVO_UNROLL
    for (int i = 0; i < G::kScoreN8; ++i) {
      OCTAVO_UNROLL
      for (int e = 0; e < 2; ++e) use(i, e, s[i * 4 + r * 2 + e]);
    }
  }

  // The query and the head of row r. A row that does not exist takes those of one that does: what
  // it reads is inside the tensors, and its results are not stored.
  static OCTAVO_DEVICE i32 query_of(const Sm90ForwardParams& p, const RowTile& tile, u32 r) {
    const i32 query = tile.query(p, r);
    return ptx::mask_term(query >= tile.at.seqlen_q, false) ? tile.at.seqlen_q - 1 : query;
  }
  static OCTAVO_DEVICE i32 head_of(const Sm90ForwardParams& p, const RowTile& tile, u32 r) {
    if constexpr (!C.pack_gqa) return tile.head;
    const i32 head = G::head_of(p, tile.row(r));
    return tile.head + (ptx::mask_term(head >= p.heads_per_kv, false) ? p.heads_per_kv - 1 : head);
  }

  // --- bias and mask ----------------------------------------------------------------------------

  // One row of a bias or a mask, from the thread's first column of a block on.
  struct TensorRow {
    const void* data;
    i64 first;      // index of that column
    i64 column;     // stride
    i32 last_left;  // columns from there to the sequence's last key
    // Every pair of columns is an aligned vector, and exists.
    bool whole;
    // Columns beyond the last key read that one's element: the mask hides their scores.
    OCTAVO_DEVICE i64 index(int i, int e) const {
      const i32 at = i * 8 + e;
      return first + ptx::mask_term(min_of(at, last_left), at) * column;
    }
  };
  static OCTAVO_DEVICE TensorRow tensor_row(const ScoreTensorParams& t, const Sm90ForwardParams& p,
                                            const RowTile& tile, i32 n, u32 r) {
    const i32 key = n + static_cast<i32>(tile.lane % 4 * 2);
    const i64 row = score_row_index(t, tile.batch, head_of(p, tile, r),
                                    tile.at.q_begin + query_of(p, tile, r), tile.at.kv_begin);
    const bool whole = t.pairs != 0 && tile.at.kv_begin % 2 == 0 &&
                       ptx::mask_term(n + C.block_n <= tile.at.seqlen_kv, true);
    return {t.data, row + key * t.column, t.column, tile.at.seqlen_kv - 1 - key, whole};
  }

  template <Element kElement>
  static OCTAVO_DEVICE void add_bias_row(float* s, u32 r, const TensorRow& row) {
    if (row.whole) {
      OCTAVO_UNROLL
      for (int i = 0; i < G::kScoreN8; ++i) {
        float first, second;
        load_bias_pair<kElement, kOverlaps>(row.data, row.first + i * 8, first, second);
        s[i * 4 + r * 2] = add_bias<kElement>(s[i * 4 + r * 2], first);
        s[i * 4 + r * 2 + 1] = add_bias<kElement>(s[i * 4 + r * 2 + 1], second);
      }
    } else {
      for_each_score(s, r, [&](int i, int e, float& score) {
        score =
            add_bias<kElement>(score, load_bias<kElement, kOverlaps>(row.data, row.index(i, e)));
      });
    }
  }
  static OCTAVO_DEVICE void add_bias_tensor(float* s, const ScoreTensorParams& bias,
                                            const Sm90ForwardParams& p, const RowTile& tile,
                                            i32 n) {
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      const TensorRow row = tensor_row(bias, p, tile, n, r);
      if (bias.element == Element::f16)
        add_bias_row<Element::f16>(s, r, row);
      else if (bias.element == Element::bf16)
        add_bias_row<Element::bf16>(s, r, row);
      else
        add_bias_row<Element::f32>(s, r, row);
    }
  }

  static OCTAVO_DEVICE void hide(float& score, u32 byte) {
    score = ptx::mask_term(byte == 0, false) ? -kInfinity : score;
  }
  static OCTAVO_DEVICE void apply_mask_tensor(float* s, const ScoreTensorParams& mask,
                                              const Sm90ForwardParams& p, const RowTile& tile,
                                              i32 n) {
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      const TensorRow row = tensor_row(mask, p, tile, n, r);
      const u8* const bytes = static_cast<const u8*>(row.data);
      if (row.whole) {
        OCTAVO_UNROLL
        for (int i = 0; i < G::kScoreN8; ++i) {
          const u32 pair = ptx::load_coherent_b16(bytes + row.first + i * 8);
          hide(s[i * 4 + r * 2], pair & 0xff);
          hide(s[i * 4 + r * 2 + 1], pair >> 8);
        }
      } else {
        for_each_score(s, r, [&](int i, int e, float& score) {
          hide(score, ptx::load_coherent_b8(bytes + row.index(i, e)));
        });
      }
    }
  }

  // --- softcap and ALiBi ------------------------------------------------------------------------

  // ALiBi of the thread's two rows.
  struct Slopes {
    float slope[2] = {0, 0};     // in log2 units
    float distance[2] = {0, 0};  // from the thread's first column to the row's diagonal
    float base[2] = {0, 0};      // what is added to every score of the row
    bool left = false;           // all columns are left of the diagonals, so distances are positive
  };
  static OCTAVO_DEVICE Slopes slopes_of(const ScoreModifierParams& m, const Sm90ForwardParams& p,
                                        const RowTile& tile, i32 n) {
    Slopes of;
    of.left = true;
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      const i32 diagonal =
          tile.query(p, r) + (p.bottom_right ? tile.at.seqlen_kv - tile.at.seqlen_q : 0);
      const i32 distance = diagonal - n - static_cast<i32>(tile.lane % 4 * 2);
      of.slope[r] = alibi_slope_log2<kOverlaps>(m, tile.sequence, head_of(p, tile, r));
      of.distance[r] = static_cast<float>(distance);
      of.left = of.left && distance >= C.block_n;
    }
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) of.base[r] = of.left ? -of.slope[r] * of.distance[r] : 0;
    return of;
  }

  // From raw scores to log2 units, with softcap, and the row's part of ALiBi.
  static OCTAVO_DEVICE void to_log2(float* s, const ScoreModifierParams& m, float scale_log2,
                                    const Slopes& alibi) {
    if (C.softcap && m.softcap_log2 != 0) {
      OCTAVO_UNROLL
      for (u32 r = 0; r < 2; ++r)
        for_each_score(s, r, [&](int, int, float& score) {
          score = apply_softcap(score * scale_log2, m) + alibi.base[r];
        });
    } else {
      OCTAVO_UNROLL
      for (u32 r = 0; r < 2; ++r)
        for_each_score(s, r, [&](int, int, float& score) {
          score = ptx::fused_multiply_add(score, scale_log2, alibi.base[r]);
        });
    }
  }
  // Left of the diagonal a column's distance is the first column's less its offset, and one
  // multiply-add suffices.
  static OCTAVO_DEVICE void add_alibi(float* s, const Slopes& alibi) {
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      if (alibi.left)
        for_each_score(s, r, [&](int i, int e, float& score) {
          score = ptx::fused_multiply_add(alibi.slope[r], static_cast<float>(i * 8 + e), score);
        });
      else
        for_each_score(s, r, [&](int i, int e, float& score) {
          score =
              apply_alibi(score, alibi.slope[r], alibi.distance[r] - static_cast<float>(i * 8 + e));
        });
    }
  }

  // --- a block, and a row at the end ------------------------------------------------------------

  // The scores of the block that begins at key n.
  static OCTAVO_DEVICE void apply(float* s, const Sm90ForwardParams& p, const RowTile& tile,
                                  i32 n) {
    const ScoreModifierParams& m = G::modifiers(p).scores;
    if constexpr (changes_scores(C)) {
      const bool has_alibi = C.alibi && m.alibi_slopes != nullptr;
      Slopes alibi;
      if (has_alibi) alibi = slopes_of(m, p, tile, n);
      to_log2(s, m, p.scale_log2, alibi);
      if (C.bias && m.bias.data != nullptr) add_bias_tensor(s, m.bias, p, tile, n);
      if (has_alibi) add_alibi(s, alibi);
    }
    if (C.mask && m.mask.data != nullptr) apply_mask_tensor(s, m.mask, p, tile, n);
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
