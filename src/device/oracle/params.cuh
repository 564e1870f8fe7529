// SPDX-License-Identifier: Apache-2.0
// Launch parameters of the FP64 oracle: one struct, passed by value and filled by the host.
#pragma once

#include "config/element.h"
#include "config/portable.h"

namespace octavo::oracle {

// Strides in elements. The scale of an element is
//   scales[batch * sequence + head * h + row * (i / block_rows) + column * c].
struct Operand {
  const void* data = nullptr;
  Element element = Element::f32;
  i64 batch = 0, head = 0, row = 0;

  const float* scales = nullptr;  // null: the elements are the values
  i64 scale_batch = 0, scale_head = 0, scale_row = 0, scale_column = 0;
  i64 block_rows = 1;
  i32 scale_by_token = 0;  // rows are counted from the tensor's first token, not the sequence's
};

// A bias or mask. Strides in elements, 0 along a dimension of size 1; rows and columns count from
// the first of the tensors.
struct ScoreTensor {
  const void* data = nullptr;  // null: absent
  Element element = Element::f32;
  i64 batch = 0, head = 0, row = 0, column = 0;
};

// Padded batches: the rows of a batch entry that are its sequence; null: all of them.
struct Padding {
  const i32* seqlens = nullptr;
  const i32* leftpad = nullptr;
};

// Row r of a list has num_blocks[r] entries, from indices[r * capacity] on; null: no list.
struct BlockList {
  const i32* num_blocks = nullptr;
  const i32* indices = nullptr;
  i64 capacity = 0;
};

// A block mask: a row of the lists for each block of queries of each head.
struct BlockMask {
  i64 size = 0;  // of a block; 0: no block mask
  BlockList partial, full;
  const i32* bit_indices = nullptr;  // of partial blocks; null: no bits
  const u32* bits = nullptr;         // (entry, query, key / 32)
  i64 batch = 0, head = 0;           // rows from one batch entry or head to the next
};

struct Params {
  Operand q, k, v;
  // Varlen batches; null: every sequence has seqlen_q queries and seqlen_kv keys.
  const i32* cu_seqlens_q = nullptr;
  const i32* cu_seqlens_kv = nullptr;
  Padding padding_q, padding_kv;
  i64 tokens_q = 0, tokens_kv = 0;  // rows of the tensors
  i64 sequences = 0, heads_q = 0, heads_per_kv = 1;
  i64 seqlen_q = 0, seqlen_kv = 0;  // the maxima in a varlen batch
  i64 head_dim = 0, head_dim_v = 0;

  double scale = 0;
  i32 causal = 0;        // a row sees no key after its diagonal
  i32 bottom_right = 0;  // the diagonal is aligned to the last row and the last key
  i64 window_left = -1, window_right = -1;

  double softcap = 0;  // 0: none
  ScoreTensor bias;
  ScoreTensor mask;                     // bytes: 0 hides the key
  const float* alibi_slopes = nullptr;  // one per query head; null: none
  i64 alibi_batch_stride = 0;
  const float* sinks = nullptr;  // one per query head; null: none
  BlockMask block_mask;

  // f16 or bf16: P and O are rounded to it, as in an unfused library; f32: no rounding.
  Element rounding = Element::f32;

  // Rows of each sequence to compute; null: all of them. `out` then holds only these rows, in
  // order.
  const i32* rows = nullptr;
  i64 row_count = 0;

  double* out = nullptr;     // (batch, heads_q, rows, head_dim_v), contiguous
  double* lse = nullptr;     // (batch, heads_q, rows)
  double* scores = nullptr;  // seqlen_kv values for every warp of the grid
  i64 warps = 0;
};

inline constexpr int kThreads = 128;

}  // namespace octavo::oracle
