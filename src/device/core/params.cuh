// What a forward kernel is told at launch. One struct by value; the host fills it.
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
  i32 by_token = 0;    // rows count from the tensor's first, not the sequence's
};

// Of 8-bit outputs their scales, and where the largest magnitudes go, each by sequence and head;
// strides of 0: one for all.
struct OutputParams {
  const float* scales = nullptr;
  i64 scale_batch = 0;
  i64 scale_head = 0;
  float* amax = nullptr;  // zeros, until a kernel has found something
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
  float* lse = nullptr;  // null: not wanted
  Strides q_strides, k_strides, v_strides, o_strides, lse_strides;
  ScaleParams q_scales, k_scales, v_scales;

  // Packed batches: spans of tokens, clamped by the kernel. Null: every sequence has len_q, len_kv.
  const i32* cu_seqlens_q = nullptr;
  const i32* cu_seqlens_kv = nullptr;
  i32 tokens_q = 0;
  i32 tokens_kv = 0;

  i32 row_tiles = 0;  // along a head's rows
  i32 tiles = 0;      // row_tiles * heads_q * sequences: as many CTAs, or fewer that are persistent
  i32 heads_q = 0;
  i32 heads_per_kv = 1;  // query heads that share a key head
  i32 len_q = 0;         // the maximum, where packed
  i32 len_kv = 0;
  i32 head_dim = 0;

  float scale_log2 = 0;  // |softmax scale| times log2(e), not 0; sim8: also the steps of Q and K
  i32 negate = 0;        // the softmax scale is negative: scores change their sign first
  float v_unit = 1;      // sim8: the step of V, in its scale

  // Row i's diagonal key is i, or i + len_kv - len_q when aligned to the bottom right. It sees the
  // keys from diagonal - left to diagonal + right; kNoLimit, which no sum overflows: all of them.
  i32 bottom_right = 0;
  i32 window_left = kNoLimit;
  i32 window_right = kNoLimit;

  OutputParams output;
};

}  // namespace octavo
