// SPDX-License-Identifier: Apache-2.0
// Block masks in the C interface.
#include "base/error.h"
#include "octavo/block_mask.hpp"
#include "octavo/octavo.h"
#include "runtime/c_api/c_reading.h"

struct octavo_owned_block_mask {
  octavo::OwnedBlockMask mask;
};

namespace octavo {
namespace {

Status read_ranges(const octavo_key_ranges* given, KeyRanges& out) {
  OCTAVO_RETURN_IF_ERROR(require(given, "ranges"));
  out = {.begin = given->begin,
         .end = given->end,
         .batch = given->batch,
         .heads = given->heads,
         .seqlen_q = given->seqlen_q,
         .seqlen_kv = given->seqlen_kv};
  return read_enum(given->causal, "ranges.causal", "none, top_left, bottom_right", out.causal);
}

octavo_block_mask c_block_mask(const BlockMask& m) {
  return {.block_size = m.block_size,
          .batch = m.batch,
          .heads = m.heads,
          .q_blocks = m.q_blocks,
          .kv_num_blocks = m.kv_num_blocks,
          .kv_indices = m.kv_indices,
          .kv_capacity = m.kv_capacity,
          .full_kv_num_blocks = m.full_kv_num_blocks,
          .full_kv_indices = m.full_kv_indices,
          .full_kv_capacity = m.full_kv_capacity,
          .bit_indices = m.bit_indices,
          .bits = m.bits,
          .bit_blocks = m.bit_blocks};
}

}  // namespace
}  // namespace octavo

using octavo::Status;

extern "C" {

octavo_status octavo_block_mask_from_ranges(const octavo_key_ranges* ranges, int64_t block_size,
                                            octavo_owned_block_mask** mask) {
  return octavo::guarded([&]() -> Status {
    OCTAVO_RETURN_IF_ERROR(octavo::require(mask, "mask"));
    octavo::KeyRanges read;
    OCTAVO_RETURN_IF_ERROR(octavo::read_ranges(ranges, read));
    octavo::Result<octavo::OwnedBlockMask> made = octavo::block_mask_from_ranges(read, block_size);
    if (!made.ok()) return made.status();
    *mask = new octavo_owned_block_mask{*std::move(made)};
    return {};
  });
}

octavo_status octavo_owned_block_mask_view(const octavo_owned_block_mask* mask,
                                           octavo_block_mask* view) {
  return octavo::guarded([&]() -> Status {
    OCTAVO_RETURN_IF_ERROR(octavo::require(mask, "mask"));
    OCTAVO_RETURN_IF_ERROR(octavo::require(view, "view"));
    *view = octavo::c_block_mask(mask->mask.view());
    return {};
  });
}

void octavo_owned_block_mask_destroy(octavo_owned_block_mask* mask) { delete mask; }

}  // extern "C"
