// SPDX-License-Identifier: Apache-2.0
// Launch parameters of a forward kernel: one struct, passed by value and filled by the host.
#pragma once

#include "config/element.h"
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
  i32 by_token = 0;    // 1: `row` is relative to the tensor's first token, not the sequence's
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
  i32 tiles = 0;      // row_tiles * heads_q * sequences: the CTAs of a grid that is not persistent
  i32 heads_q = 0;
  i32 heads_per_kv = 1;  // query heads per KV head
  i32 seqlen_q = 0;      // the maximum in a varlen batch
  i32 seqlen_kv = 0;
  i32 head_dim = 0;

  float scale_log2 = 0;  // |softmax scale| * log2(e), not 0; sim8: also times the steps of Q and K
  i32 negate = 0;        // 1: the softmax scale is negative, so scores change sign first
  float v_unit = 1;      // sim8: the step of V, as a factor of its scale

  // Row i's diagonal key is i, or i + seqlen_kv - seqlen_q when aligned to the bottom right. The
  // row sees keys diagonal - left to diagonal + right; kNoLimit, which overflows no sum, means all
  // of them.
  i32 bottom_right = 0;
  i32 window_left = kNoLimit;
  i32 window_right = kNoLimit;

  // Columns of V and O, read by kernels for problems where they are not those of Q and K. It fills
  // a gap before the pointers of `output`, so that the other parameters stay where they are.
  i32 head_dim_v = 0;

  OutputParams output;
};

// A tensor that broadcasts to (B, Hq, Sq, Skv). Rows and columns are those of the tensors Q and K,
// padding included. Strides are in elements, and 0 along a dimension of size 1.
struct ScoreTensorParams {
  const void* data = nullptr;  // null: absent
  Element element = Element::f32;
  i32 pairs = 0;  // columns 2i and 2i + 1 of every row form an aligned vector
  i64 batch = 0, head = 0, row = 0, column = 0;
};

// softcap * tanh(scale * s / softcap) as an odd polynomial of the raw score s, in log2 units:
// s (c[0] + s^2 c[1]) while |s| is at most `limit`.
struct SoftcapPolynomial {
  float c[2] = {0, 0};
  float limit = 0;
};

// The modifiers of the scores, applied in this order: softcap, bias, ALiBi, mask. A kernel
// reads only the parts that its configuration has, and skips a part whose value here is neutral.
// Applying them leaves scores in log2 units; in the Hopper forward kernel with a bias, in natural
// units.
struct ScoreModifierParams {
  float softcap_log2 = 0;               // softcap * log2(e); 0: none
  float inverse_softcap_log2 = 0;       // 1 / softcap_log2
  SoftcapPolynomial softcap_series;     // the same softcap where scores are small
  ScoreTensorParams bias;               // f16, bf16 or f32, in natural units
  ScoreTensorParams mask;               // bytes: 0 hides the key
  const float* alibi_slopes = nullptr;  // one per query head, in natural units; null: none
  i64 alibi_batch_stride = 0;           // from one sequence's slopes to the next; 0: the same
  const float* sinks = nullptr;         // one per query head, in natural units; null: none
};

// Padded batches: sequence b holds rows [leftpad[b], leftpad[b] + seqlens[b]) of its batch entry.
// Null leftpad: 0. Null seqlens: all rows after the left padding. All null: no padding.
struct PaddingParams {
  const i32* seqlens_q = nullptr;
  const i32* seqlens_kv = nullptr;
  const i32* leftpad_q = nullptr;
  const i32* leftpad_kv = nullptr;
};

// Parameters of kernels with modifiers or padding. They follow the parameters that all kernels
// take, so the code of other kernels does not depend on them.
struct ModifierParams {
  ScoreModifierParams scores;
  PaddingParams padding;
};

struct ModifiedForwardParams : ForwardParams {
  ModifierParams modifiers;
};

// One of the two lists of a block mask: row r, of a block of queries of a head, has
// num_blocks[r] entries from indices[r * capacity] on. Null: no list.
struct BlockListParams {
  const i32* num_blocks = nullptr;
  const i32* indices = nullptr;
  i32 capacity = 0;
};

// A block mask. Kernels with one take these parameters after those of modifiers.
struct BlockMaskParams {
  BlockListParams partial, full;
  const i32* bit_indices = nullptr;  // of partial blocks, as their indices; null: no bits
  const u32* bits = nullptr;         // entry after entry: a row of bits for each query
  i32 bit_blocks = 0;
  i32 kv_blocks = 0;        // larger indices are clamped
  i64 batch = 0, head = 0;  // rows of the lists from one batch entry or head to the next
};

struct BlockMaskedForwardParams : ModifiedForwardParams {
  BlockMaskParams block_mask;
};

}  // namespace octavo
