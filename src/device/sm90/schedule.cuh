// Which tiles of query rows a CTA works on, and in which order.
//
// Heads are taken in groups; inside a group tiles are ordered by their row, the last rows first:
// under a causal mask those see the most keys, and the short tiles are left to fill the gaps at the
// end. CTAs that stay take every grid-th tile, from left to right and back again, so that who got
// the longer tile of one round gets the shorter one of the next. That balances only where a group's
// tiles fill whole rounds, which the host sees to (gpu/tile_order.cc). Without a mask only
// a head's last tile may be shorter, where rows end before it does: then all CTAs move on by so
// many places a round that each gets its share of those. Neither needs a counter in memory, and the
// same CTA gets the same tiles every time.
#pragma once

#include "config/sm90_forward.h"
#include "device/core/block_range.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/sm90/params.cuh"

namespace octavo::sm90 {

struct Tile {
  SequenceSpan at;
  i32 sequence, batch, head;
  i32 first_row;
  i32 begin;   // first key that is loaded
  i32 blocks;  // of keys; -1: there are no such rows
};

template <int kBlockM, int kBlockN>
OCTAVO_DEVICE Tile tile_at(const Sm90ForwardParams& p, i32 index) {
  const i32 group = min_of(index / (p.row_tiles * p.mixed_heads), p.head_groups - 1);
  const i32 first_head = group * p.mixed_heads;
  const i32 mixed =
      group + 1 < p.head_groups ? p.mixed_heads : p.heads_q * p.sequences - first_head;
  const i32 in_group = index - first_head * p.row_tiles;
  const i32 head = first_head + in_group % mixed;
  Tile t;
  t.first_row = (p.row_tiles - 1 - in_group / mixed) * kBlockM;
  t.sequence = head / p.heads_q;
  t.head = head - t.sequence * p.heads_q;
  t.batch = p.cu_seqlens_q == nullptr ? t.sequence : 0;
  t.at = sequence_span(p, t.sequence);
  if (t.first_row >= t.at.len_q) {
    t.begin = 0;
    t.blocks = -1;
    return t;
  }
  const BlockRange range = block_range(p, t.at, t.first_row, kBlockM, kBlockN);
  t.begin = range.begin;
  t.blocks = div_up(max_of(range.end - range.begin, 0), kBlockN);
  return t;
}

template <bool kPersistent>
struct TileLoop {
  i32 index, round = 0;

  OCTAVO_DEVICE TileLoop() : index(ptx::block_index_x()) {}
  OCTAVO_DEVICE bool more(const Sm90ForwardParams& p) const { return index < p.tiles; }
  OCTAVO_DEVICE void next(const Sm90ForwardParams& p) {
    if constexpr (!kPersistent) {
      index = p.tiles;
    } else {
      const i32 grid = ptx::grid_size_x();
      const i32 cta = ptx::block_index_x();
      ++round;
      const i32 there = p.turn == 0 && round % 2 != 0 ? grid - 1 - cta : cta;
      index = round * grid + (there + round * p.turn) % grid;
    }
  }
};

// Tiles that the loader has announced, in shared memory: who computes reads there what it needs
// when it needs it, and keeps it in no register over the loop. A slot is written again only four
// tiles later, when no warpgroup can be so far behind.
template <class G>
struct TileBoard {
  static constexpr i32 kNoMore = -2;  // blocks of the tile after the last

  static OCTAVO_DEVICE u32 slot(u32 tile) {
    return ptx::shared_base() + G::S.board + tile % kBoardSlots * board_bytes(G::C);
  }
  // By one thread, before it arrives at a barrier that readers wait for.
  static OCTAVO_DEVICE void write(u32 tile, const Tile& t) {
    ptx::store_shared_b128(slot(tile),
                           {static_cast<u32>(t.at.q_begin), static_cast<u32>(t.at.len_q),
                            static_cast<u32>(t.at.len_kv), static_cast<u32>(t.batch)});
    ptx::store_shared_b128(slot(tile) + 16,
                           {static_cast<u32>(t.head), static_cast<u32>(t.first_row),
                            static_cast<u32>(t.begin), static_cast<u32>(t.blocks)});
    if constexpr (announces_sequence(G::C)) {
      ptx::store_shared_b32(slot(tile) + 32, static_cast<u32>(t.at.kv_begin));
      ptx::store_shared_b32(slot(tile) + 36, static_cast<u32>(t.sequence));
    }
  }
  static OCTAVO_DEVICE Tile read(u32 tile) {
    u32 a[4], b[4];
    ptx::load_shared_b128(slot(tile), a);
    ptx::load_shared_b128(slot(tile) + 16, b);
    Tile t;
    t.at = {static_cast<i32>(a[0]), static_cast<i32>(a[1]), 0, static_cast<i32>(a[2])};
    t.sequence = 0;
    t.batch = static_cast<i32>(a[3]);
    t.head = static_cast<i32>(b[0]);
    t.first_row = static_cast<i32>(b[1]);
    t.begin = static_cast<i32>(b[2]);
    t.blocks = static_cast<i32>(b[3]);
    if constexpr (announces_sequence(G::C)) {
      u32 begin, sequence;
      ptx::load_shared_b64(slot(tile) + 32, begin, sequence);
      t.at.kv_begin = static_cast<i32>(begin);
      t.sequence = static_cast<i32>(sequence);
    }
    return t;
  }
};

}  // namespace octavo::sm90
