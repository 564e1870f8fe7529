// SPDX-License-Identifier: Apache-2.0
// Launch parameters of the Hopper backward kernels.
#pragma once

#include "device/core/divider.cuh"
#include "device/core/params.cuh"
#include "device/ptx/tma.cuh"

namespace octavo {

struct Sm90BackwardParams {
  // (column, row, head, batch); rows are tokens and there is one batch in a varlen batch.
  ptx::TensorMap q, k, v, dout;

  // The row statistics, [sequence][head_q][stats_rows], written by device/backward/row_stats.cuh.
  const float* lse_log2 = nullptr;
  const float* delta = nullptr;
  i32 stats_rows = 0;

  // The FP32 partial sums of dQ: a tile for each partial sum, query head and block of queries, in
  // the order of the accumulator registers; and for each slice of such a tile, how many key tiles
  // have been added.
  float* dq_sum = nullptr;
  u32* dq_turn = nullptr;
  i32 dq_tiles = 0;  // of one head
  i32 dq_sums = 1;   // 1 or 2 partial sums

  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
  Strides dq_strides, dk_strides, dv_strides;

  const i32* cu_seqlens_q = nullptr;
  const i32* cu_seqlens_kv = nullptr;
  i32 tokens_q = 0;
  i32 tokens_kv = 0;

  i32 n_tiles = 0;  // of one KV head
  i32 heads_kv = 0;
  i32 heads_per_kv = 1;
  i32 sequences = 0;
  i32 seqlen_q = 0;
  i32 seqlen_kv = 0;
  i32 head_dim = 0;
  i32 heads_per_group = 1;   // KV heads whose tiles start together under a mask
  i32 max_cyclic_tiles = 0;  // tiles of a head that may wait for each other in a circle

  float scale = 0;       // the softmax scale
  float scale_log2 = 0;  // times log2(e)

  i32 bottom_right = 0;
  i32 window_left = kNoLimit;
  i32 window_right = kNoLimit;
};

// Parameters of kernels with modifiers or padding, as in core/params.cuh.
struct ModifiedSm90BackwardParams : Sm90BackwardParams {
  ModifierParams modifiers;
};

}  // namespace octavo
