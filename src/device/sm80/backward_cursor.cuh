// SPDX-License-Identifier: Apache-2.0
// The blocks of streamed rows that a CTA of the sm80 backward kernel visits, in order: all of its
// range, or those that a block mask shows to its rows. The dkv pass visits the blocks of every
// query head of the group.
//
// A block mask lists blocks of keys for each block of queries, but the dkv pass owns keys. So the
// lanes of a warp search the lists for 32 blocks of streamed rows at once, in either pass. This
// takes no memory and no other launch, and every warp finds the same blocks in the same order.
#pragma once

#include "config/portable.h"
#include "device/backward/params.cuh"
#include "device/core/block_range.cuh"
#include "device/core/find_block.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/vector_memory.cuh"

namespace octavo::sm80 {

// Every block of a range.
template <class G>
struct RangeCursor {
  using WorkTile = typename G::WorkTile;
  i32 head, row;

  OCTAVO_DEVICE void start(i32, const BlockRange&, const BackwardParams&, const WorkTile&) {}
  OCTAVO_DEVICE void advance(const BlockRange& range, const BackwardParams&, const WorkTile&) {
    row += G::kStreamedRows;
    if (row < range.end) return;
    row = range.begin;
    ++head;
  }
  OCTAVO_DEVICE i32 bits() const { return -1; }
};

// The blocks of a range that a block mask has.
template <class G>
struct ListedCursor {
  using WorkTile = typename G::WorkTile;
  static constexpr int kSize = G::C.modifiers.block_mask;
  static_assert(kSize % G::kOwnRows == 0, "the owned rows are in one block of the mask");
  static_assert(kSize % G::kStreamedRows == 0, "streamed rows are in one block of the mask");

  i32 head, row;
  i32 end_head = 0;
  i32 window = -1;     // of 32 blocks of the mask, that was searched last
  u32 seen = 0;        // a bit for each of its blocks
  i32 lane_bits = -1;  // of this lane's block: the index of its table of bits, or -1
  i32 table = -1;      // the same of the block at `row`

  OCTAVO_DEVICE void start(i32 end, const BlockRange& range, const BackwardParams& p,
                           const WorkTile& tile) {
    end_head = end;
    settle(range, p, tile);
  }
  OCTAVO_DEVICE void advance(const BlockRange& range, const BackwardParams& p,
                             const WorkTile& tile) {
    row += G::kStreamedRows;
    settle(range, p, tile);
  }
  OCTAVO_DEVICE i32 bits() const { return table; }

 private:
  // Moves on to the next block that is seen, from `row` on.
  OCTAVO_DEVICE void settle(const BlockRange& range, const BackwardParams& p,
                            const WorkTile& tile) {
    OCTAVO_UNROLL_BY(1)
    while (head < end_head) {
      if (row >= range.end) {
        row = range.begin;
        ++head;
        window = -1;
        continue;
      }
      const i32 block = row / kSize;
      if (block / 32 != window) {
        window = block / 32;
        search(p, tile);
      }
      if (ptx::mask_term((seen >> (block % 32) & 1) != 0, true)) {
        table = of_lane(lane_bits + 1, block % 32, tile) - 1;
        return;
      }
      row = (block + 1) * kSize;
    }
  }

  // Each lane searches for one block of the window.
  OCTAVO_DEVICE void search(const BackwardParams& p, const WorkTile& tile) {
    const i32 streamed = window * 32 + static_cast<i32>(tile.lane), own = tile.first_row / kSize;
    FoundBlock found;
    if (streamed * kSize < tile.span.seqlen_kv)
      found = G::kOwnsKeys ? find_block(G::block_mask(p), tile.batch, head, streamed, own)
                           : find_block(G::block_mask(p), tile.batch, tile.head, own, streamed);
    lane_bits = found.bits;
    seen = static_cast<u32>(any_bits(found.is_listed ? static_cast<i32>(1u << tile.lane) : 0));
  }

  static OCTAVO_DEVICE i32 any_bits(i32 x) {
    OCTAVO_UNROLL
    for (int mask = 1; mask < 32; mask *= 2) x |= ptx::shuffle_xor(x, mask);
    return x;
  }
  // The value of one lane, in all lanes.
  static OCTAVO_DEVICE i32 of_lane(i32 x, i32 lane, const WorkTile& tile) {
    return any_bits(static_cast<i32>(tile.lane) == lane ? x : 0);
  }
};

template <class G, bool kHasBlockMask>
struct SelectCursor {
  using Type = RangeCursor<G>;
};
template <class G>
struct SelectCursor<G, true> {
  using Type = ListedCursor<G>;
};
template <class G>
using CursorOf = typename SelectCursor<G, (G::C.modifiers.block_mask != 0)>::Type;

// The bits of a block of scores, owned rows by streamed rows, of one thread. In the dq pass the
// columns of four tiles are neighbours in a row of the table, one word. In the dkv pass columns are
// queries, each with another row of the table, of which a thread needs the bits of its few keys.
template <class G>
struct BlockBits {
  using WorkTile = typename G::WorkTile;
  static constexpr int kSize = max_of(G::C.modifiers.block_mask, 32), kRowWords = kSize / 32;
  static constexpr int kRows = G::kTilesM * 2;  // of the thread
  static constexpr int kWords = G::kOwnsKeys ? 1 : (G::kTilesN + 3) / 4;
  static_assert(G::C.modifiers.block_mask == 0 || !G::kOwnsKeys || 32 % G::kRowsPerWarp == 0,
                "the keys of a warp have one word of a query's bits");
  static_assert(G::C.modifiers.block_mask == 0 || !G::kOwnsKeys || G::kTilesN * 2 * kRows <= 32,
                "the bits of a thread fit into a word");
  static_assert(G::C.modifiers.block_mask == 0 || G::kColumnsPerWarp % 32 == 0 ||
                    G::kColumnsPerWarp == 16,
                "a word has the bits of four tiles of columns");

  u32 words[G::kOwnsKeys ? 1 : kRows][kWords];

  // `first`: of the streamed rows; `table`: the index of the block's table, -1 without bits.
  OCTAVO_DEVICE void load(const BlockMaskParams& p, const WorkTile& tile, i32 first, i32 table) {
    const u32* const bits = p.bits + static_cast<i64>(max_of(table, 0)) * kSize * kRowWords;
    const i32 column = first + tile.first_column();
    if constexpr (G::kOwnsKeys) {
      const i32 key = tile.first_row + static_cast<i32>(tile.row(0, 0));
      words[0][0] = table >= 0 ? 0u : ~0u;
      OCTAVO_UNROLL
      for (int j = 0; j < G::kTilesN * 2; ++j) {
        const i32 query = column + j / 2 * 8 + static_cast<i32>(tile.lane % 4 * 2) + j % 2;
        u32 of_query = 0;
        if (table >= 0)
          of_query = ptx::load_global_b32(bits + query % kSize * kRowWords + key % kSize / 32) >>
                     (key % 32);
        OCTAVO_UNROLL
        for (int i = 0; i < kRows; ++i) words[0][0] |= (of_query >> (i * 8) & 1) << (j * kRows + i);
      }
    } else {
      OCTAVO_UNROLL
      for (int i = 0; i < kRows; ++i) {
        const i32 query = tile.first_row + static_cast<i32>(tile.row(i / 2, i % 2));
        OCTAVO_UNROLL
        for (int j = 0; j < kWords; ++j) {
          words[i][j] = ~0u;
          if (table >= 0)
            words[i][j] = ptx::load_global_b32(bits + query % kSize * kRowWords +
                                               (column + j * 32) % kSize / 32);
        }
      }
    }
  }
  // Whether the thread's row r of tile m sees column e of tile n.
  OCTAVO_DEVICE bool is_set(const WorkTile& tile, i32 first, int m, int r, int n, int e) const {
    u32 word, bit;
    if constexpr (G::kOwnsKeys) {
      word = words[0][0];
      bit = static_cast<u32>((n * 2 + e) * kRows + m * 2 + r);
    } else {
      word = words[m * 2 + r][n / 4];
      bit = static_cast<u32>(first + tile.first_column()) % 32 + n % 4 * 8 + tile.lane % 4 * 2 + e;
    }
    return ptx::mask_term((word >> bit & 1) != 0, true);
  }
};

}  // namespace octavo::sm80
