// SPDX-License-Identifier: Apache-2.0
// Divides work tiles into parts: the KV tiles of a work tile that one partial result sums up.
//
// EvenParts gives every CTA the same number of KV tiles, to within one; a part is what one CTA
// computes of a work tile. All CTAs are equally busy. FixedParts is for batch_invariant: the length
// of the sequence alone determines its parts (part_tiles), so the bits of a sequence do not depend
// on the batch. A CTA computes whole parts, so some CTAs have one part more than others.
#pragma once

#include "config/decode.h"
#include "device/decode/schedule.cuh"
#include "device/ptx/thread.cuh"

namespace octavo::decode {

template <class Tiles>
struct EvenParts {
  // The first KV tile of a CTA, counted over all work tiles.
  static OCTAVO_DEVICE i32 first_tile(const Tiles& tiles, i32 cta) { return tiles.first_tile(cta); }
  // Whether a part of the work tile must begin or end at this KV tile, independent of where CTAs
  // begin and end.
  static OCTAVO_DEVICE bool begins(const Cursor& at) { return at.kv_tile == 0; }
  static OCTAVO_DEVICE bool ends(const Cursor& at) { return at.kv_tile + 1 == at.keys.kv_tiles; }

  // The number of the partial result of the part that ends at KV tile `at`, whose number is
  // `index`; -1 if the part is the whole work tile. `first` is the number of the CTA's first KV
  // tile. Each CTA has two partial results, for its first work tile and for its last one.
  static OCTAVO_DEVICE i32 partial(const Params&, const Cursor& at, i32 index, i32 first) {
    const i32 begin = index - at.kv_tile;  // of the work tile
    if (begin >= first && ends(at)) return -1;
    return static_cast<i32>(ptx::block_index_x()) * 2 + (begin <= first ? 0 : 1);
  }
};

template <class Tiles>
struct FixedParts {
  // The first KV tile of the CTA's even share, rounded up to the beginning of a part.
  static OCTAVO_DEVICE i32 first_tile(const Tiles& tiles, i32 cta) {
    const i32 even = tiles.first_tile(cta);
    if (even >= tiles.total) return tiles.total;
    const Cursor at = tiles.find(even);
    const i32 in_part = part_tiles(at.keys.kv_tiles);
    const i32 begin = min_of(div_up(at.kv_tile, in_part) * in_part, at.keys.kv_tiles);
    return even + begin - at.kv_tile;
  }
  static OCTAVO_DEVICE bool begins(const Cursor& at) {
    return at.kv_tile % part_tiles(at.keys.kv_tiles) == 0;
  }
  static OCTAVO_DEVICE bool ends(const Cursor& at) {
    const i32 next = at.kv_tile + 1;
    return next == at.keys.kv_tiles || next % part_tiles(at.keys.kv_tiles) == 0;
  }
  static OCTAVO_DEVICE i32 partial(const Params& p, const Cursor& at, i32, i32) {
    const i32 in_part = part_tiles(at.keys.kv_tiles);
    if (at.keys.kv_tiles <= in_part) return -1;
    return first_partial(p, at) + at.kv_tile / in_part;
  }
  // The number of the partial result of a work tile's first part. Those of its other parts follow.
  static OCTAVO_DEVICE i32 first_partial(const Params& p, const Cursor& at) {
    return ((at.sequence * p.heads_kv + at.kv_head) * p.row_tiles + at.row_tile) * p.most_parts;
  }
};

template <class Tiles, bool kBatchInvariant>
struct SelectParts {
  using Type = EvenParts<Tiles>;
};
template <class Tiles>
struct SelectParts<Tiles, true> {
  using Type = FixedParts<Tiles>;
};

}  // namespace octavo::decode
