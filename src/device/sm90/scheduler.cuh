// SPDX-License-Identifier: Apache-2.0
// The tile scheduler: which work tiles a CTA computes, and how its producer warp passes them on.
//
// Tiles are numbered group by group of heads. In a group they are ordered by row, the last rows
// first: under a causal mask those see the most keys, and the short tiles fill the gaps at the end.
// A round has one tile for each persistent CTA, and rounds run left to right and back, so that the
// CTA with the longer tile of one round gets the shorter one of the next. This balances the load if
// a group's tiles fill whole rounds, which the host ensures (gpu/forward/tile_order.cc). Without a
// mask only a head's last tile may be shorter: CTAs then shift by `rotation` positions each round,
// and each gets its share of those; or the short tiles of all heads come last.
#pragma once

#include "config/sm90_forward.h"
#include "device/core/block_mask.cuh"
#include "device/core/block_range.cuh"
#include "device/core/score_modifiers.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "device/sm90/column_tile.cuh"
#include "device/sm90/params.cuh"

namespace octavo::sm90 {

// Special values of WorkTile::n_blocks. With 0 blocks a tile's rows see no key but are stored.
inline constexpr i32 kNoRows = -1;       // the tile stores no rows: it is skipped, not published
inline constexpr i32 kNoMoreTiles = -2;  // there is no tile: published after the last

struct WorkTile {
  SequenceSpan span;
  i32 sequence, batch, head;  // head: of tile_heads (column_tile.cuh)
  i32 first_row;              // before row 0 if row_shift makes the first tile short
  i32 n_begin;                // first key that is loaded
  i32 n_blocks;               // blocks of keys, or kNoRows, or kNoMoreTiles
  i32 diagonal;               // with starts_at_diagonal: the block that is visited first
  float alibi_slope;          // of the head
  BlockRow blocks;            // with a block mask: its lists for the tile, which are not published
};

// The first key of a tile's visit-th block. Blocks ascend, but with ALiBi they first descend from
// the diagonal, and then ascend from the block after it.
template <class G>
OCTAVO_DEVICE i32 first_key(const WorkTile& t, i32 visit) {
  if (!starts_at_diagonal(G::C)) return t.n_begin + visit * G::C.block_n;
  return t.n_begin + (visit <= t.diagonal ? t.diagonal - visit : visit) * G::C.block_n;
}
// The block that holds the last row's diagonal key: ALiBi tiles start there if every warpgroup
// visits the same blocks. Under a causal or window mask they do not, and start at the last block.
template <class G>
OCTAVO_DEVICE i32 diagonal_block(const Sm90ForwardParams& p, const WorkTile& t) {
  const i32 last = t.n_blocks - 1;
  if (p.window_left != kNoLimit || p.window_right != kNoLimit) return last;
  const i32 row = t.first_row + block_m(G::C) - 1;
  const i32 key = row + (p.bottom_right ? t.span.seqlen_kv - t.span.seqlen_q : 0);
  return min_of(max_of(key, 0) / G::C.block_n, last);
}

template <class G>
OCTAVO_DEVICE WorkTile work_tile(const Sm90ForwardParams& p, i32 index) {
  constexpr int kBlockM = block_m(G::C), kBlockN = G::C.block_n;
  const i32 heads = p.tile_heads * p.sequences;
  const i32 group = min_of(index / (p.grouped_row_tiles * p.heads_per_group), p.head_groups - 1);
  const i32 first_head = group * p.heads_per_group;
  const i32 group_heads = group + 1 < p.head_groups ? p.heads_per_group : heads - first_head;
  const i32 position = index - first_head * p.grouped_row_tiles;
  i32 head = first_head + position % group_heads;
  i32 row_tile = p.grouped_row_tiles - 1 - position / group_heads;
  if (index >= p.grouped_row_tiles * heads) {
    head = index - p.grouped_row_tiles * heads;
    row_tile = p.grouped_row_tiles;
  }
  WorkTile t;
  t.first_row = row_tile * kBlockM - shifted_rows(G::C, p);
  t.sequence = head / p.tile_heads;
  t.head = head - t.sequence * p.tile_heads;
  t.batch = p.cu_seqlens_q == nullptr ? t.sequence : 0;
  t.span = G::span(p, t.sequence);
  if (t.first_row >= t.span.seqlen_q) {
    t.n_begin = 0;
    t.n_blocks = t.first_row < G::stored_rows(p, t.span) ? 0 : kNoRows;
    return t;
  }
  const i32 first_row = may_shift_rows(G::C) ? max_of(t.first_row, 0) : t.first_row;
  const BlockRange range =
      block_range(p, t.span, first_row, t.first_row + kBlockM - first_row, kBlockN);
  t.n_begin = range.begin;
  t.n_blocks = div_up(max_of(range.end - range.begin, 0), kBlockN);
  if (has_block_mask(G::C)) {
    t.blocks =
        block_row</*kOverlaps=*/true>(G::block_mask(p), t.batch, t.head, t.first_row / kBlockM);
    if (t.n_blocks > 0) t.n_blocks = blocks_of_keys(G::C, t.blocks.count());
  }
  if (starts_at_diagonal(G::C)) {
    const ScoreModifierParams& m = G::modifiers(p).scores;
    t.diagonal = diagonal_block<G>(p, t);
    t.alibi_slope =
        m.alibi_slopes == nullptr ? 0 : alibi_slope<true>(m, t.sequence, head_of<G::C>(t));
  }
  return t;
}

// The tiles of a persistent CTA.
struct TileScheduler {
  i32 index, round = 0;

  OCTAVO_DEVICE TileScheduler() : index(ptx::block_index_x()) {}
  OCTAVO_DEVICE bool has_tile(const Sm90ForwardParams& p) const { return index < p.tiles; }
  OCTAVO_DEVICE void advance(const Sm90ForwardParams& p) {
    const i32 grid = ptx::grid_size_x();
    const i32 cta = ptx::block_index_x();
    ++round;
    const i32 position = p.rotation == 0 && round % 2 != 0 ? grid - 1 - cta : cta;
    index = round * grid + (position + round * p.rotation) % grid;
  }
};

// Work tiles in shared memory, published by the producer. Consumers reread a slot instead of
// keeping its values in registers across the loop. Four slots suffice: before tile n + 4 is
// published, every warpgroup has released Q of tile n + 2, and by then it has stored tile n.
template <class G>
struct WorkTileSlots {
  static OCTAVO_DEVICE u32 slot(u32 tile) {
    return G::smem(G::S.tile_slots) + tile % kTileSlots * tile_slot_bytes(G::C);
  }
  // By one thread, before it arrives at a barrier that the readers wait for.
  static OCTAVO_DEVICE void publish(u32 tile, const WorkTile& t) {
    ptx::store_shared_b128(slot(tile),
                           {static_cast<u32>(t.span.q_begin), static_cast<u32>(t.span.seqlen_q),
                            static_cast<u32>(t.span.seqlen_kv), static_cast<u32>(t.batch)});
    ptx::store_shared_b128(slot(tile) + 16,
                           {static_cast<u32>(t.head), static_cast<u32>(t.first_row),
                            static_cast<u32>(t.n_begin), static_cast<u32>(t.n_blocks)});
    if constexpr (publishes_sequence(G::C)) {
      ptx::store_shared_b32(slot(tile) + 32, static_cast<u32>(t.span.kv_begin));
      ptx::store_shared_b32(slot(tile) + 36, static_cast<u32>(t.sequence));
    }
    if (starts_at_diagonal(G::C)) {
      ptx::store_shared_b32(slot(tile) + 40, static_cast<u32>(t.diagonal));
      ptx::store_shared_b32(slot(tile) + 44, ptx::bits_of(t.alibi_slope));
    }
  }
  static OCTAVO_DEVICE WorkTile read(u32 tile) {
    u32 a[4], b[4];
    ptx::load_shared_b128(slot(tile), a);
    ptx::load_shared_b128(slot(tile) + 16, b);
    WorkTile t;
    t.span = {static_cast<i32>(a[0]), static_cast<i32>(a[1]), 0, static_cast<i32>(a[2])};
    t.sequence = 0;
    t.batch = static_cast<i32>(a[3]);
    t.head = static_cast<i32>(b[0]);
    t.first_row = static_cast<i32>(b[1]);
    t.n_begin = static_cast<i32>(b[2]);
    t.n_blocks = static_cast<i32>(b[3]);
    if constexpr (publishes_sequence(G::C)) {
      u32 begin, sequence;
      ptx::load_shared_b64(slot(tile) + 32, begin, sequence);
      t.span.kv_begin = static_cast<i32>(begin);
      t.sequence = static_cast<i32>(sequence);
    }
    if (starts_at_diagonal(G::C)) {
      u32 diagonal, slope;
      ptx::load_shared_b64(slot(tile) + 40, diagonal, slope);
      t.diagonal = static_cast<i32>(diagonal);
      t.alibi_slope = ptx::float_of_bits(slope);
    }
    return t;
  }
};

}  // namespace octavo::sm90
