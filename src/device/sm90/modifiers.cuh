// What happens to a block of scores between Q K^T and the softmax: softcap, bias, ALiBi and the
// mask tensor, and to a row sum at the end of a tile: the sink. Which of them a kernel can apply is
// a matter of its configuration; a null pointer, or a softcap of 0, skips one for the whole launch.
//
// The scores are in natural units afterwards, if anything but the mask may change them, and the
// softmax brings them to log2 units: a bias is then added by the multiply-add that scales. A thread
// reads of bias and mask what belongs to its own scores: two neighbouring columns of every eight,
// of two rows.
#pragma once

#include "device/core/score_modifiers.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/wgmma.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/params.cuh"
#include "device/sm90/score_tiles.cuh"

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

  static OCTAVO_DEVICE void add_loaded_bias(float* s, float scale, const ScoreTensorParams& bias,
                                            const Sm90ForwardParams& p, const RowTile& tile,
                                            i32 n) {
    constexpr Element kElement = C.bias_element;
    const auto rows = tensor_rows<element_bytes(kElement)>(bias, p, tile, n);
    if (rows.whole) {
      for_each_pair<kPairLoads>(s, [&](u32 r, int i, float& first, float& second) {
        float x[2];
        load_bias_pair<kElement, kOverlaps>(rows.pair(r, i), 0, x[0], x[1]);
        first = ptx::fused_multiply_add(first, scale, x[0]);
        second = ptx::fused_multiply_add(second, scale, x[1]);
      });
    } else {
      for_each_pair<kSingleLoads>(s, [&](u32 r, int i, float& first, float& second) {
        const auto load = [&](int e) {
          return load_bias<kElement, kOverlaps>(rows.at(r, i, e), 0);
        };
        first = ptx::fused_multiply_add(first, scale, load(0));
        second = ptx::fused_multiply_add(second, scale, load(1));
      });
    }
  }
  // From scores that `scale` brings to natural units.
  static OCTAVO_DEVICE void add_bias(float* s, float scale, const ScoreTensorParams& bias,
                                     const Sm90ForwardParams& p, const RowTile& tile, i32 n) {
    if constexpr (C.score_tiles)
      ScoreTiles<G>::for_each_bias(bias, tile, [&](u32 r, int i, float first, float second) {
        float* const pair = s + i * 4 + r * 2;
        pair[0] = ptx::fused_multiply_add(pair[0], scale, first);
        pair[1] = ptx::fused_multiply_add(pair[1], scale, second);
      });
    else
      add_loaded_bias(s, scale, bias, p, tile, n);
  }

  static OCTAVO_DEVICE void hide(float& score, bool is_hidden) {
    score = ptx::mask_term(is_hidden, false) ? -kInfinity : score;
  }
  static OCTAVO_DEVICE void apply_loaded_mask(float* s, const ScoreTensorParams& mask,
                                              const Sm90ForwardParams& p, const RowTile& tile,
                                              i32 n) {
    const TensorRows<1> rows = tensor_rows<1>(mask, p, tile, n);
    if (rows.whole) {
      for_each_pair<kPairLoads>(s, [&](u32 r, int i, float& first, float& second) {
        const u32 pair = ptx::load_coherent_b16(rows.pair(r, i));
        hide(first, (pair & 0xff) == 0);
        hide(second, pair >> 8 == 0);
      });
    } else {
      for_each_pair<kSingleLoads>(s, [&](u32 r, int i, float& first, float& second) {
        hide(first, ptx::load_coherent_b8(rows.at(r, i, 0)) == 0);
        hide(second, ptx::load_coherent_b8(rows.at(r, i, 1)) == 0);
      });
    }
  }
  static OCTAVO_DEVICE void apply_mask_tensor(float* s, const ScoreTensorParams& mask,
                                              const Sm90ForwardParams& p, const RowTile& tile,
                                              i32 n) {
    if constexpr (C.score_tiles) {
      const auto visible = ScoreTiles<G>::visible(tile);
      if (ptx::warp_any(!visible.all()))
        for_each_score(s,
                       [&](u32 r, int column, float& score) { hide(score, !visible(r, column)); });
    } else {
      apply_loaded_mask(s, mask, p, tile, n);
    }
  }

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
      for_each_score(
          s, [&](u32, int, float& score) { score = apply_softcap_polynomial(score, series); });
      return;
    }
    const float softcap = m.softcap_log2 * kLn2;
    for_each_score(s, [&](u32, int, float& score) {
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
          tile.query(p, r) + (p.bottom_right ? tile.at.seqlen_kv - tile.at.seqlen_q : 0);
      const i32 distance = diagonal - n - static_cast<i32>(tile.lane % 4 * 2);
      of.slope[r] = is_split_kv(C) ? alibi_slope<kOverlaps>(m, tile.sequence, head_of(p, tile, r))
                                   : tile.alibi_slope;
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
      for_each_score(s, [&](u32 r, int column, float& score) {
        const float with_first = ptx::fused_multiply_add(score, scale, first[r]);
        score = ptx::fused_multiply_add(slope[r], static_cast<float>(column), with_first);
      });
    } else {
      for_each_score(s, [&](u32 r, int column, float& score) {
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
    if (changes_scores(C)) to_natural(s, m, p, n, tile_of);
    if (C.mask && m.mask.data != nullptr) apply_mask_tensor(s, m.mask, p, tile_of(), n);
  }
  template <class TileOf>
  static OCTAVO_DEVICE void to_natural(float* s, const ScoreModifierParams& m,
                                       const Sm90ForwardParams& p, i32 n, TileOf&& tile_of) {
    float scale = p.scale_log2 * kLn2;  // what the scores still have to be multiplied by
    const bool has_bias = C.bias && m.bias.data != nullptr;
    const bool has_alibi = C.alibi && m.alibi_slopes != nullptr;
    if (C.softcap) {
      cap(s, m, p.scale_log2);
      scale = 1;
    }
    if (has_bias) {
      add_bias(s, scale, m.bias, p, tile_of(), n);
      scale = 1;
    }
    if (has_alibi)
      add_alibi(s, scale, slopes_of(m, p, tile_of(), n));
    else if (!C.softcap && !has_bias)
      for_each_score(s, [&](u32, int, float& score) { score *= scale; });
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
