// SPDX-License-Identifier: Apache-2.0
// Launch parameters of the mma.sync backward kernels.
#pragma once

#include "config/element.h"
#include "config/portable.h"
#include "device/core/params.cuh"

namespace octavo {

struct BackwardParams {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* dout = nullptr;
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
  Strides q_strides, k_strides, v_strides, dout_strides, dq_strides, dk_strides, dv_strides;

  // The row statistics, [sequence][head_q][stats_rows], written by device/backward/row_stats.cuh.
  const float* lse_log2 = nullptr;
  const float* delta = nullptr;
  i32 stats_rows = 0;

  // Varlen batches: token spans, clamped by the kernel. Null: every sequence has seqlen_q,
  // seqlen_kv.
  const i32* cu_seqlens_q = nullptr;
  const i32* cu_seqlens_kv = nullptr;
  i32 tokens_q = 0;
  i32 tokens_kv = 0;

  i32 own_tiles = 0;  // blocks of owned rows in a head: of keys (dkv) or of queries (dq)
  i32 heads_q = 0;
  i32 heads_kv = 0;
  i32 heads_per_kv = 1;  // query heads per KV head
  i32 seqlen_q = 0;      // the maximum in a varlen batch
  i32 seqlen_kv = 0;
  i32 head_dim = 0;

  float scale = 0;       // softmax scale, of any sign
  float scale_log2 = 0;  // scale * log2(e)

  // The mask; its meaning is that of ForwardParams.
  i32 bottom_right = 0;
  i32 window_left = kNoLimit;
  i32 window_right = kNoLimit;
};

// Parameters of kernels with modifiers or padding, as in core/params.cuh.
struct ModifiedBackwardParams : BackwardParams {
  ModifierParams modifiers;
};

// The gradient of a bias. Strides are in elements, and 0 along a dimension of size 1.
struct BiasGradientParams : ModifiedBackwardParams {
  void* dbias = nullptr;
  Element dbias_element = Element::f32;
  Strides dbias_strides;
  i32 sequences = 0;
  i32 bias_batch = 1;  // entries of the bias: 1 or `sequences`,
  i32 bias_heads = 1;  // and 1 or heads_q
  i32 m_blocks = 0, n_blocks = 0;
};

// Kernels with a block mask, of every pass, take it after all other parameters.
struct BlockMaskedBackwardParams : BiasGradientParams {
  BlockMaskParams block_mask;
};

}  // namespace octavo
