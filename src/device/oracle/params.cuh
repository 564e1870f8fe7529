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

struct Params {
  Operand q, k, v;
  // Varlen batches; null: every sequence has seqlen_q queries and seqlen_kv keys.
  const i32* cu_seqlens_q = nullptr;
  const i32* cu_seqlens_kv = nullptr;
  i64 tokens_q = 0, tokens_kv = 0;  // rows of the tensors
  i64 sequences = 0, heads_q = 0, heads_per_kv = 1;
  i64 seqlen_q = 0, seqlen_kv = 0, head_dim = 0;  // the maxima in a varlen batch

  double scale = 0;
  i32 causal = 0;        // a row sees no key after its diagonal
  i32 bottom_right = 0;  // the diagonal is aligned to the last row and the last key
  i64 window_left = -1, window_right = -1;

  // f16 or bf16: P and O are rounded to it, as in an unfused library; f32: no rounding.
  Element rounding = Element::f32;

  // Rows of each sequence to compute; null: all of them. `out` then holds only these rows, in
  // order.
  const i32* rows = nullptr;
  i64 row_count = 0;

  double* out = nullptr;     // (batch, heads_q, rows, head_dim), contiguous
  double* lse = nullptr;     // (batch, heads_q, rows)
  double* scores = nullptr;  // seqlen_kv values for every warp of the grid
  i64 warps = 0;
};

inline constexpr int kThreads = 128;

}  // namespace octavo::oracle
