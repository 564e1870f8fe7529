// Launch parameters of a forward kernel: one struct, passed by value and filled by the host.
#pragma once

#include "config/portable.h"

namespace octavo {

// (batch, head, row) strides in elements.
struct Strides {
  i64 batch = 0;
  i64 head = 0;
  i64 row = 0;
};

// Scales of an 8-bit operand: index = batch * b + head * h + (row / block_rows) * stride, or
// column * stride for channels. Null for 16-bit operands.
struct ScaleParams {
  const float* data = nullptr;
  i64 batch = 0;
  i64 head = 0;
  i32 stride = 0;      // 0: one scale per head
  i32 block_rows = 1;  // rows that share a scale
  i32 by_token = 0;    // rows are counted from the tensor's first token, not the sequence's
};

// Scales of an 8-bit output and the destination of amax, each indexed by sequence and head. Strides
// of 0: one value for all.
struct OutputParams {
  const float* scales = nullptr;
  i64 scale_batch = 0;
  i64 scale_head = 0;
  float* amax = nullptr;  // zero-initialised; kernels raise it atomically
  i64 amax_batch = 0;
  i64 amax_head = 0;
};

// A window limit beyond every length.
inline constexpr i32 kNoLimit = (1 << 30) - 1;

struct ForwardParams {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* o = nullptr;
  float* lse = nullptr;  // null: not requested
  Strides q_strides, k_strides, v_strides, o_strides, lse_strides;
  ScaleParams q_scales, k_scales, v_scales;

  // Varlen batches: token spans, clamped by the kernel. Null: every sequence has seqlen_q,
  // seqlen_kv.
  const i32* cu_seqlens_q = nullptr;
  const i32* cu_seqlens_kv = nullptr;
  i32 tokens_q = 0;
  i32 tokens_kv = 0;

  i32 row_tiles = 0;  // along a head's rows
  i32 tiles =
      0;  // row_tiles * heads_q * sequences: the number of CTAs, unless fewer persistent ones run
  i32 heads_q = 0;
  i32 heads_per_kv = 1;  // query heads per KV head
  i32 seqlen_q = 0;      // the maximum in a varlen batch
  i32 seqlen_kv = 0;
  i32 head_dim = 0;

  float scale_log2 = 0;  // |softmax scale| * log2(e), not 0; sim8: also times the steps of Q and K
  i32 negate = 0;        // the softmax scale is negative: scores change sign first
  float v_unit = 1;      // sim8: the step of V, as a factor of its scale

  // Row i's diagonal key is i, or i + seqlen_kv - seqlen_q when aligned to the bottom right. The
  // row sees keys diagonal - left to diagonal + right; kNoLimit, which overflows no sum, means all
  // of them.
  i32 bottom_right = 0;
  i32 window_left = kNoLimit;
  i32 window_right = kNoLimit;

  OutputParams output;
};

}  // namespace octavo
