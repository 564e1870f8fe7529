// SPDX-License-Identifier: Apache-2.0
// Searches the lists of a block mask for one block of keys. Kernels that own keys, or single blocks
// of scores, ask which blocks of queries see them; the lists say it the other way round. Lists
// ascend; contents that do not are read within their bounds, and blocks may then not be found.
#pragma once

#include "config/portable.h"
#include "device/core/block_mask.cuh"
#include "device/core/params.cuh"
#include "device/ptx/target.cuh"

namespace octavo {

// Where a list of a block of queries has a block of keys; -1 if nowhere.
OCTAVO_DEVICE i64 place_in_list(const BlockListParams& list, i64 row, i32 kv_block) {
  if (list.num_blocks == nullptr) return -1;
  const i64 first = row * list.capacity;
  const i32 entries = clamped_index(load_listed<false>(list.num_blocks + row), list.capacity);
  i32 begin = 0, end = entries;
  OCTAVO_UNROLL_BY(1)
  while (begin < end) {
    const i32 middle = (begin + end) / 2;
    if (load_listed<false>(list.indices + first + middle) < kv_block)
      begin = middle + 1;
    else
      end = middle;
  }
  if (begin == entries) return -1;
  return load_listed<false>(list.indices + first + begin) == kv_block ? first + begin : -1;
}

struct FoundBlock {
  bool is_listed = false;
  i32 bits = -1;  // the index of its table of bits, or -1 if every key is visible
};

OCTAVO_DEVICE FoundBlock find_block(const BlockMaskParams& p, i32 batch, i32 head, i32 q_block,
                                    i32 kv_block) {
  const i64 row = batch * p.batch + head * p.head + q_block;
  FoundBlock found;
  found.is_listed = place_in_list(p.full, row, kv_block) >= 0;
  if (found.is_listed) return found;
  const i64 place = place_in_list(p.partial, row, kv_block);
  found.is_listed = place >= 0;
  if (found.is_listed && p.bit_indices != nullptr)
    found.bits = clamped_index(load_listed<false>(p.bit_indices + place), p.bit_blocks - 1);
  return found;
}

}  // namespace octavo
