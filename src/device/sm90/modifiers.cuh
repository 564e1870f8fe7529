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
#include "device/ptx/wgmma.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/params.cuh"

namespace octavo::sm90 {

template <class G>
struct ScoreModifier {
  using RowTile = typename G::RowTile;
  static constexpr Sm90ForwardConfig C = G::C;
  static constexpr bool kOverlaps = true;  // the grid may start before an earlier one has ended
  static constexpr bool kChangesBlocks = changes_scores(C) || C.mask;

  // Calls use(r, i, first, second) with the thread's scores of columns 8 i and 8 i + 1 of row r.
  // Where `use` loads, every kAtOnce calls are completed before the next begin: the compiler would
  // otherwise start more loads than there are registers for.
  template <int kAtOnce = G::kScoreN8, class Use>
  static OCTAVO_DEVICE void for_each_pair(float* s, Use&& use) {
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      OCTAVO_UNROLL
      for (int i = 0; i < G::kScoreN8; ++i) {
        float* const pair = s + i * 4 + r * 2;
        use(r, i, pair[0], pair[1]);
        if (kAtOnce < G::kScoreN8 && i % kAtOnce == kAtOnce - 1) pin_pairs<kAtOnce>(pair);
      }
    }
  }
  // The pairs of kCount groups of columns, the last of which is given.
  template <int kCount>
  static OCTAVO_DEVICE void pin_pairs(float* last) {
    OCTAVO_UNROLL
    for (int i = 0; i < kCount; ++i) {
      ptx::pin(*(last - i * 4));
      ptx::pin(*(last - i * 4 + 1));
    }
  }
  static constexpr int kPairLoads = 4, kSingleLoads = 2;
  // Calls use(r, column, score).
  template <class Use>
  static OCTAVO_DEVICE void for_each_score(float* s, Use&& use) {
    for_each_pair(s, [&](u32 r, int i, float& first, float& second) {
      use(r, i * 8, first);
      use(r, i * 8 + 1, second);
    });
  }

  // The query and the head of row r. A row that does not exist takes those of one that does: what
  // it reads is inside the tensors, and its results are not stored.
  static OCTAVO_DEVICE i32 query_of(const Sm90ForwardParams& p, const RowTile& tile, u32 r) {
    const i32 query = tile.query(p, r);
    return ptx::mask_term(query >= tile.at.seqlen_q, false) ? tile.at.seqlen_q - 1 : query;
  }
  static OCTAVO_DEVICE i32 head_of(const Sm90ForwardParams& p, const RowTile& tile, u32 r) {
    if (!C.pack_gqa) return tile.head;
    const i32 head = G::head_of(p, tile.row(r));
    return tile.head + (ptx::mask_term(head >= p.heads_per_kv, false) ? p.heads_per_kv - 1 : head);
  }

  // --- bias and mask ----------------------------------------------------------------------------

  // The elements of a bias or a mask that a thread reads for a block: two rows, from its first
  // column.
  template <int kBytes>
  struct TensorRows {
    const u8* row[2];
    i64 column_bytes;  // from one column to the next
    i32 last;          // the sequence's last key, as a column
    bool whole;        // every pair of columns exists and is an aligned vector

    // Columns beyond the last key read that one's element: the mask hides their scores.
    OCTAVO_DEVICE const u8* at(u32 r, int i, int e) const {
      const i32 column = i * 8 + e;
      return row[r] + ptx::mask_term(min_of(column, last), column) * column_bytes;
    }
    OCTAVO_DEVICE const u8* pair(u32 r, int i) const { return row[r] + i * 8 * kBytes; }
  };
  template <int kBytes>
  static OCTAVO_DEVICE TensorRows<kBytes> tensor_rows(const ScoreTensorParams& t,
                                                      const Sm90ForwardParams& p,
                                                      const RowTile& tile, i32 n) {
    const i32 key = n + static_cast<i32>(tile.lane % 4 * 2);
    TensorRows<kBytes> of;
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r)
      of.row[r] =
          static_cast<const u8*>(t.data) +
          kBytes * score_row_index(t, tile.batch, head_of(p, tile, r),
                                   tile.at.q_begin + query_of(p, tile, r), tile.at.kv_begin + key);
    of.column_bytes = t.column * kBytes;
    of.last = tile.at.seqlen_kv - 1 - key;
    of.whole = t.pairs != 0 && tile.at.kv_begin % 2 == 0 &&
               ptx::mask_term(n + C.block_n <= tile.at.seqlen_kv, true);
    return of;
  }

  template <Element kElement>
  static OCTAVO_DEVICE void add_bias_of(float* s, const ScoreTensorParams& bias,
                                        const Sm90ForwardParams& p, const RowTile& tile, i32 n) {
    const auto rows = tensor_rows<element_bytes(kElement)>(bias, p, tile, n);
    if (rows.whole) {
      for_each_pair<kPairLoads>(s, [&](u32 r, int i, float& first, float& second) {
        float x[2];
        load_bias_pair<kElement, kOverlaps>(rows.pair(r, i), 0, x[0], x[1]);
        first = add_bias<kElement>(first, x[0]);
        second = add_bias<kElement>(second, x[1]);
      });
    } else {
      for_each_pair<kSingleLoads>(s, [&](u32 r, int i, float& first, float& second) {
        first = add_bias<kElement>(first, load_bias<kElement, kOverlaps>(rows.at(r, i, 0), 0));
        second = add_bias<kElement>(second, load_bias<kElement, kOverlaps>(rows.at(r, i, 1), 0));
      });
    }
  }
  static OCTAVO_DEVICE void add_bias_tensor(float* s, const ScoreTensorParams& bias,
                                            const Sm90ForwardParams& p, const RowTile& tile,
                                            i32 n) {
    if (bias.element == Element::f16)
      add_bias_of<Element::f16>(s, bias, p, tile, n);
    else if (bias.element == Element::bf16)
      add_bias_of<Element::bf16>(s, bias, p, tile, n);
    else
      add_bias_of<Element::f32>(s, bias, p, tile, n);
  }

  static OCTAVO_DEVICE void hide(float& score, u32 byte) {
    score = ptx::mask_term(byte == 0, false) ? -kInfinity : score;
  }
  static OCTAVO_DEVICE void apply_mask_tensor(float* s, const ScoreTensorParams& mask,
                                              const Sm90ForwardParams& p, const RowTile& tile,
                                              i32 n) {
    const TensorRows<1> rows = tensor_rows<1>(mask, p, tile, n);
    if (rows.whole) {
      for_each_pair<kPairLoads>(s, [&](u32 r, int i, float& first, float& second) {
        const u32 pair = ptx::load_coherent_b16(rows.pair(r, i));
        hide(first, pair & 0xff);
        hide(second, pair >> 8);
      });
    } else {
      for_each_pair<kSingleLoads>(s, [&](u32 r, int i, float& first, float& second) {
        hide(first, ptx::load_coherent_b8(rows.at(r, i, 0)));
        hide(second, ptx::load_coherent_b8(rows.at(r, i, 1)));
      });
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
    if (C.softcap && m.softcap_log2 != 0)
      for_each_score(s, [&](u32 r, int, float& score) {
        score = apply_softcap(score * scale_log2, m) + alibi.base[r];
      });
    else
      for_each_score(s, [&](u32 r, int, float& score) {
        score = ptx::fused_multiply_add(score, scale_log2, alibi.base[r]);
      });
  }
  // Left of the diagonal a column's distance is the first column's less its offset, and one
  // multiply-add suffices.
  static OCTAVO_DEVICE void add_alibi(float* s, const Slopes& alibi) {
    if (alibi.left)
      for_each_score(s, [&](u32 r, int column, float& score) {
        score = ptx::fused_multiply_add(alibi.slope[r], static_cast<float>(column), score);
      });
    else
      for_each_score(s, [&](u32 r, int column, float& score) {
        score = apply_alibi(score, alibi.slope[r], alibi.distance[r] - static_cast<float>(column));
      });
  }

  // --- a block, and a row at the end ------------------------------------------------------------

  // The scores of the block that begins at key n. Each step asks for the tile: nothing about it is
  // then held in registers from one step to the next.
  template <class TileOf>
  static OCTAVO_DEVICE void apply(float* s, const Sm90ForwardParams& p, i32 n, TileOf&& tile_of) {
    const ScoreModifierParams& m = G::modifiers(p).scores;
    if (changes_scores(C)) {
      const bool has_alibi = C.alibi && m.alibi_slopes != nullptr;
      Slopes alibi;
      if (has_alibi) alibi = slopes_of(m, p, tile_of(), n);
      to_log2(s, m, p.scale_log2, alibi);
      if (has_alibi) add_alibi(s, alibi);
      if (C.bias && m.bias.data != nullptr) add_bias_tensor(s, m.bias, p, tile_of(), n);
    }
    if (C.mask && m.mask.data != nullptr) apply_mask_tensor(s, m.mask, p, tile_of(), n);
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
