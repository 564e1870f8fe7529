// SPDX-License-Identifier: Apache-2.0
// Kernels whose V has more columns than a tile. The tile order counts each tile of columns as one
// more head (tile_heads of Sm90ForwardParams), so a head of Q has as many heads there as V has
// tiles of columns. In other kernels nothing is left of these functions.
#pragma once

#include "config/sm90_forward.h"
#include "device/ptx/target.cuh"

namespace octavo::sm90 {

// The part of a row tile that says which columns of V and O it has.
template <Sm90ForwardConfig C, int kTiles = column_tiles(C)>
struct ColumnTile {
  static_assert(!is_8bit_pv(C) && !is_split_kv(C) && !has_block_mask(C),
                "only 16-bit kernels without block masks have two tiles of V's columns");
  i32 first_column;
  // Sets first_column, and replaces `head`, one of tile_heads, by its head of Q.
  OCTAVO_DEVICE void take_column_tile(i32& head) {
    first_column = head % kTiles * v_columns(C);
    head /= kTiles;
  }
};
template <Sm90ForwardConfig C>
struct ColumnTile<C, 1> {
  static constexpr i32 first_column = 0;
  OCTAVO_DEVICE void take_column_tile(i32&) {}
};

// A work tile's head of Q.
template <Sm90ForwardConfig C, class WorkTile>
OCTAVO_DEVICE i32 head_of(const WorkTile& t) {
  return column_tiles(C) > 1 ? t.head / column_tiles(C) : t.head;
}
// A work tile's first column of V and O.
template <Sm90ForwardConfig C, class WorkTile>
OCTAVO_DEVICE i32 first_column_of(const WorkTile& t) {
  return t.head % column_tiles(C) * v_columns(C);
}

}  // namespace octavo::sm90
