// SPDX-License-Identifier: Apache-2.0
// Looks up blocks of a block mask, for code on the host.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "octavo/octavo.hpp"

namespace octavo {

// Which keys of one block a block of queries sees.
struct SeenBlock {
  bool is_seen = false;                 // those whose bits are set
  const std::uint32_t* bits = nullptr;  // block_size rows of block_size bits; null: all are set
};

// The lists of one block of queries. Contents that validate_lengths() would refuse are clamped, so
// that nothing outside the arrays is read.
class BlockMaskRow {
 public:
  BlockMaskRow(const BlockMask& mask, std::int64_t batch, std::int64_t head, std::int64_t q_block)
      : mask_(&mask),
        row_(((mask.batch == 1 ? 0 : batch) * mask.heads + (mask.heads == 1 ? 0 : head)) *
                 mask.q_blocks +
             q_block) {}

  SeenBlock block(std::int64_t kv_block) const {
    if (find(mask_->full_kv_num_blocks, mask_->full_kv_indices, mask_->full_kv_capacity,
             kv_block) >= 0)
      return {true, nullptr};
    const std::int64_t place =
        find(mask_->kv_num_blocks, mask_->kv_indices, mask_->kv_capacity, kv_block);
    if (place < 0) return {};
    if (mask_->bits == nullptr) return {true, nullptr};
    const std::int64_t entry =
        std::clamp<std::int64_t>(mask_->bit_indices[place], 0, mask_->bit_blocks - 1);
    return {true, mask_->bits + entry * mask_->block_size * mask_->block_size / 32};
  }

 private:
  // The index of the block in the list; -1 if it is not listed.
  std::int64_t find(const std::int32_t* num_blocks, const std::int32_t* indices,
                    std::int64_t capacity, std::int64_t kv_block) const {
    if (num_blocks == nullptr) return -1;
    const auto count = std::clamp<std::int64_t>(num_blocks[row_], 0, capacity);
    const std::int32_t* const begin = indices + row_ * capacity;
    const std::int32_t* const found = std::lower_bound(begin, begin + count, kv_block);
    return found != begin + count && *found == kv_block ? found - indices : -1;
  }

  const BlockMask* mask_;
  std::int64_t row_;
};

// Whether a query sees a key of a block. Query and key are counted from the first of their block.
inline bool sees(const BlockMask& mask, const SeenBlock& block, std::int64_t query,
                 std::int64_t key) {
  if (!block.is_seen || block.bits == nullptr) return block.is_seen;
  return (block.bits[query * mask.block_size / 32 + key / 32] >> (key % 32) & 1) != 0;
}

}  // namespace octavo
