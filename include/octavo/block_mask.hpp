// SPDX-License-Identifier: Apache-2.0
// Block masks from ranges of keys: prefix-LM masks, documents one after the other, and whatever
// else shows each query one range of keys.
#pragma once

#include <cstdint>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo {

// Which keys each query sees: one range for each. Query i of head h of batch entry b sees keys
// begin[r] to end[r] - 1, where r = (b * heads + h) * seqlen_q + i; without keys if end[r] <=
// begin[r]. A causal mask hides the keys after the diagonal, too.
struct KeyRanges {
  const std::int32_t* begin = nullptr;  // (batch, heads, seqlen_q), on the host
  const std::int32_t* end = nullptr;    // likewise
  std::int64_t batch = 1, heads = 1;    // those of q, or 1, which holds for all
  std::int64_t seqlen_q = 0, seqlen_kv = 0;
  Causal causal = Causal::none;
};

// A block mask and its arrays, in host memory. A program copies the arrays to the device before
// attention() runs there; attention_from_host() copies them itself.
struct OCTAVO_API OwnedBlockMask {
  std::int64_t block_size = 0, batch = 1, heads = 1, q_blocks = 0;
  std::int64_t kv_capacity = 0, full_kv_capacity = 0;
  std::vector<std::int32_t> kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices;
  std::vector<std::int32_t> bit_indices;
  std::vector<std::uint32_t> bits;

  BlockMask view() const;  // valid as long as this object, unchanged
};

// The block mask of ranges of keys, as prefix-LM and document masks have them, without a tensor of
// all scores. Its partial blocks have bits, so attention() needs no causal mask or window for it.
OCTAVO_API Result<OwnedBlockMask> block_mask_from_ranges(const KeyRanges& ranges,
                                                         std::int64_t block_size = 128);

}  // namespace octavo
