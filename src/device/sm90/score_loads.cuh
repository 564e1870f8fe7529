// SPDX-License-Identifier: Apache-2.0
// Bias and mask tensors of any layout: each thread loads the elements for its own scores.
// ScoreTiles has the same members, for tensors that TMA can load.
#pragma once

#include "device/core/score_modifiers.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/term.cuh"
#include "device/sm90/score_registers.cuh"

namespace octavo::sm90 {

template <class G>
struct ScoreLoads : ScoreRegisters<G> {
  using Registers = ScoreRegisters<G>;
  using RowTile = typename G::RowTile;
  using Registers::head_of, Registers::hide, Registers::query_of;
  static constexpr Sm90ForwardConfig C = G::C;
  static constexpr bool kOverlaps = Registers::kOverlaps;
  static constexpr int kPairLoads = 4, kSingleLoads = 2;

  // Where a thread reads the elements of a bias or a mask for a block: two rows, from its first
  // column on.
  template <int kBytes>
  struct TensorRows {
    const u8* row[2];
    i64 column_bytes;  // from one column to the next
    i32 last;          // the column of the sequence's last key
    bool whole;        // every pair of columns exists and is an aligned vector

    // Columns after the last key read the last key's element: the mask hides their scores.
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
    TensorRows<kBytes> rows;
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r)
      rows.row[r] = static_cast<const u8*>(t.data) +
                    kBytes * score_row_index(t, tile.batch, head_of(p, tile, r),
                                             tile.span.q_begin + query_of(p, tile, r),
                                             tile.span.kv_begin + key);
    rows.column_bytes = t.column * kBytes;
    rows.last = tile.span.seqlen_kv - 1 - key;
    rows.whole = t.pairs != 0 && tile.span.kv_begin % 2 == 0 &&
                 ptx::mask_term(n + C.block_n <= tile.span.seqlen_kv, true);
    return rows;
  }

  // Adds a bias to scores that `scale` converts to natural units.
  static OCTAVO_DEVICE void add_bias(float* s, float scale, const ScoreTensorParams& bias,
                                     const Sm90ForwardParams& p, const RowTile& tile, i32 n) {
    constexpr Element kElement = C.modifiers.bias_element;
    const auto rows = tensor_rows<element_bytes(kElement)>(bias, p, tile, n);
    if (rows.whole) {
      Registers::template for_each_pair<kPairLoads>(
          s, [&](u32 r, int i, float& first, float& second) {
            float x[2];
            load_bias_pair<kElement, kOverlaps>(rows.pair(r, i), 0, x[0], x[1]);
            first = ptx::fused_multiply_add(first, scale, x[0]);
            second = ptx::fused_multiply_add(second, scale, x[1]);
          });
    } else {
      Registers::template for_each_pair<kSingleLoads>(
          s, [&](u32 r, int i, float& first, float& second) {
            const auto load = [&](int e) {
              return load_bias<kElement, kOverlaps>(rows.at(r, i, e), 0);
            };
            first = ptx::fused_multiply_add(first, scale, load(0));
            second = ptx::fused_multiply_add(second, scale, load(1));
          });
    }
  }

  static OCTAVO_DEVICE void hide_masked(float* s, const ScoreTensorParams& mask,
                                        const Sm90ForwardParams& p, const RowTile& tile, i32 n) {
    const TensorRows<1> rows = tensor_rows<1>(mask, p, tile, n);
    if (rows.whole) {
      Registers::template for_each_pair<kPairLoads>(
          s, [&](u32 r, int i, float& first, float& second) {
            const u32 pair = ptx::load_coherent_b16(rows.pair(r, i));
            hide(first, (pair & 0xff) == 0);
            hide(second, pair >> 8 == 0);
          });
    } else {
      Registers::template for_each_pair<kSingleLoads>(
          s, [&](u32 r, int i, float& first, float& second) {
            hide(first, ptx::load_coherent_b8(rows.at(r, i, 0)) == 0);
            hide(second, ptx::load_coherent_b8(rows.at(r, i, 1)) == 0);
          });
    }
  }

  // Without tiles there is nothing to prepare.
  static OCTAVO_DEVICE void init_barriers(u32 /*group*/) {}
  static OCTAVO_DEVICE void run_loads(const Sm90ForwardParams&, u32 /*warp*/) {}
  static OCTAVO_DEVICE bool wait(const Sm90ForwardParams&, u32 /*group*/, u32 /*phase*/) {
    return false;
  }
};

}  // namespace octavo::sm90
