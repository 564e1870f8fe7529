// SPDX-License-Identifier: Apache-2.0
// Kernels whose V has more columns than a tile: each head of Q has several heads of tiles
// (tile_heads of Sm90ForwardParams), one for each tile of columns. In other kernels nothing is left
// of these functions.
#pragma once

#include "config/sm90_forward.h"
#include "device/ptx/target.cuh"

namespace octavo::sm90 {

// What a row tile knows of its columns.
template <Sm90ForwardConfig C, int kTiles = column_tiles(C)>
struct ColumnTile {
  i32 first_column;  // of V and O
  // Replaces one of tile_heads by its head of Q.
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

// Of a work tile: the head of Q, and the first column of V and O.
template <Sm90ForwardConfig C, class WorkTile>
OCTAVO_DEVICE i32 head_of(const WorkTile& t) {
  return column_tiles(C) > 1 ? t.head / column_tiles(C) : t.head;
}
template <Sm90ForwardConfig C, class WorkTile>
OCTAVO_DEVICE i32 first_column_of(const WorkTile& t) {
  return t.head % column_tiles(C) * v_columns(C);
}

}  // namespace octavo::sm90
