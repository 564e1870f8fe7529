// SPDX-License-Identifier: Apache-2.0
// Launch parameters of the kernel that appends to a KV cache.
#pragma once

#include "device/core/divider.cuh"
#include "device/core/params.cuh"

namespace octavo::append {

// New rows of K or V, and the pages that they are written to.
struct Side {
  const void* from = nullptr;  // (batch, heads, tokens, head_dim)
  Strides from_strides;
  void* to = nullptr;  // (pages, heads, page_size, head_dim)
  Strides to_strides;
  float* scales = nullptr;  // of an 8-bit cache: (pages, heads, page_size)
};

struct Params {
  Side k, v;
  i32 batch = 0, heads = 0, tokens = 0, head_dim = 0;
  i32 rows = 0;  // batch * heads * tokens
  Divider by_tokens, by_heads;

  const i32* table = nullptr;  // the pages of each sequence
  i64 table_stride = 0;
  i32 page_size = 0;
  Divider by_page_size;
  i32* lengths = nullptr;           // rows of each sequence, which grow by `tokens`
  const i32* capacities = nullptr;  // rows for which the table has pages
  u32* arrivals = nullptr;          // CTAs that have read the lengths; 0 between launches

  // A rotary embedding of K, or null: cos and sin are (positions, pairs).
  const float* cos = nullptr;
  const float* sin = nullptr;
  i32 positions = 0x7fffffff;
  i32 pairs = 0;
  i32 interleaved = 0;

  float max_quantized = 0;  // the 8-bit value of the largest magnitude of a row
  // int4 cache: scales and then zeros, f16 (pages, heads, 2, groups, page_size).
  u16* k_groups = nullptr;
  u16* v_groups = nullptr;
};

}  // namespace octavo::append
