// Which tiles of query rows a CTA works on, and in which order.
//
// Heads are taken in groups; inside a group tiles are ordered by their row, the last rows first:
// under a causal mask those see the most keys, and the short tiles are left to fill the gaps at the
// end. CTAs that stay take every grid-th tile, from left to right and back again, so that who got
// the longer tile of one round gets the shorter one of the next. That balances only over a whole
// number of such pairs of rounds, which the host sees to (gpu/launch_sm90_forward.cc); it needs no
// counter in memory, and the same CTA gets the same tiles every time.
#pragma once

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
      index = round * grid + (round % 2 == 0 ? cta : grid - 1 - cta);
    }
  }
};

}  // namespace octavo::sm90
