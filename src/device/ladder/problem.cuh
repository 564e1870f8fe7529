// SPDX-License-Identifier: Apache-2.0
// The problem that every kernel of the ladder solves: attention in FP16, without or with a causal
// mask (aligned top-left), over contiguous tensors.
//
//   o = softmax(scale * q k^T) v
//
// Each kernel is in a file of its own with one new idea; docs/ladder/ explains them in order.
#pragma once

#include "device/ptx/target.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/tma.cuh"

namespace octavo::ladder {

inline constexpr float kInfinity = __builtin_huge_valf();

// Launch parameters. A "head" is one of batch * heads: they are all alike.
struct Params {
  const u16* q = nullptr;  // (heads, seqlen_q, head_dim)
  const u16* k = nullptr;  // (heads, seqlen_kv, head_dim)
  const u16* v = nullptr;
  u16* o = nullptr;  // as q
  i32 seqlen_q = 0;
  i32 seqlen_kv = 0;     // at least 1
  i32 causal = 0;        // row i sees the keys 0 to i
  float scale_log2 = 0;  // scale * log2(e), positive: softmax in powers of two

  // The same tensors for TMA, which only specialised_warps.cuh reads.
  ptx::TensorMap q_map, k_map, v_map;
};

// How many keys a row sees: the first ones. At least one.
OCTAVO_DEVICE i32 visible_keys(const Params& p, i32 row) {
  return p.causal != 0 ? min_of(p.seqlen_kv, row + 1) : p.seqlen_kv;
}

// The rows of one CTA: kRows rows of a head, of which the last may not exist.
template <int kRows>
struct RowTile {
  i32 head, first_row;

  OCTAVO_DEVICE explicit RowTile(const Params& p) {
    const i32 tiles = div_up(p.seqlen_q, kRows);
    head = ptx::block_index_x() / tiles;
    first_row = ptx::block_index_x() % tiles * kRows;
  }
  // Keys that any of the rows sees.
  OCTAVO_DEVICE i32 keys(const Params& p) const { return visible_keys(p, first_row + kRows - 1); }
};

}  // namespace octavo::ladder
