// SPDX-License-Identifier: Apache-2.0
// Block masks: the blocks of keys that a block of queries visits, first those of its list of
// partial blocks and then those of its list of full ones. Contents of the lists are clamped, never
// trusted.
#pragma once

#include "config/portable.h"
#include "device/core/params.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/target.cuh"

namespace octavo {

// The lists of one block of queries.
struct BlockRow {
  i64 row = 0;
  i32 partial = 0, full = 0;  // entries
  OCTAVO_DEVICE i32 count() const { return partial + full; }
};

// An entry of the lists: a block of keys, and the index of its table of bits, or -1 if every key is
// visible.
struct ListedBlock {
  i32 block = 0;
  i32 bits = -1;
};

// A grid that overlaps an earlier one (kOverlaps) may have started before that one has written the
// lists.
template <bool kOverlaps>
OCTAVO_DEVICE i32 load_listed(const i32* p) {
  return kOverlaps ? ptx::load_coherent_i32(p) : ptx::load_global_i32(p);
}

OCTAVO_DEVICE i32 clamped_index(i32 x, i32 most) { return max_of(min_of(x, most), 0); }

template <bool kOverlaps>
OCTAVO_DEVICE BlockRow block_row(const BlockMaskParams& p, i32 batch, i32 head, i32 q_block) {
  BlockRow row;
  row.row = batch * p.batch + head * p.head + q_block;
  const auto entries = [&](const BlockListParams& list) {
    if (list.num_blocks == nullptr) return 0;
    return clamped_index(load_listed<kOverlaps>(list.num_blocks + row.row), list.capacity);
  };
  row.partial = entries(p.partial);
  row.full = entries(p.full);
  return row;
}

// Entry `i`, which must be below row.count().
template <bool kOverlaps>
OCTAVO_DEVICE ListedBlock listed_block(const BlockMaskParams& p, const BlockRow& row, i32 i) {
  const bool is_partial = i < row.partial;
  const BlockListParams& list = is_partial ? p.partial : p.full;
  const i64 index = row.row * list.capacity + (is_partial ? i : i - row.partial);
  ListedBlock found;
  found.block = clamped_index(load_listed<kOverlaps>(list.indices + index), p.kv_blocks - 1);
  if (is_partial && p.bit_indices != nullptr)
    found.bits = clamped_index(load_listed<kOverlaps>(p.bit_indices + index), p.bit_blocks - 1);
  return found;
}

}  // namespace octavo
