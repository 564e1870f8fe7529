// SPDX-License-Identifier: Apache-2.0
// Launch parameters of a quantizer: one struct, passed by value and filled by the host.
#pragma once

#include "config/portable.h"
#include "device/core/divider.cuh"
#include "device/core/params.cuh"

namespace octavo {

struct QuantizeParams {
  const void* x = nullptr;
  Strides x_strides;
  // The result. out_columns elements of each row are written, a multiple of eight; those after the
  // columns of x are zeros.
  void* out = nullptr;
  Strides out_strides;
  i32 out_columns = 0;

  // The scale of (sequence, head, index) is at sequence * scale_batch + head * scale_head + index.
  // The index is the number of a row, block or column; rows are counted from the tensor's first if
  // by_token is set, else from the sequence's first. When dequantizing, the caller's scales are at
  // index * scale_stride, with one scale for scale_rows rows (0: one for each column).
  float* scales = nullptr;
  i64 scale_batch = 0;
  i64 scale_head = 0;
  i32 scale_stride = 1;
  i32 scale_rows = 1;
  i32 by_token = 0;
  float max_quantized = 0;  // the quantized value of the largest magnitude under a scale
  // Two passes: the first writes `partials` maxima for each scale.
  float* partial_amax = nullptr;
  i32 partials = 0;

  // Smoothed K: for each head mean_groups sums of kMeanRows rows each, and the means. Each sum or
  // mean has mean_columns columns, a multiple of eight.
  double* mean_sums = nullptr;
  float* means = nullptr;
  i32 mean_groups = 0;
  i32 mean_columns = 0;

  const i32* cu_seqlens = nullptr;  // null: every sequence has `len` rows
  i32 tokens = 0;                   // rows of the tensor
  i32 len = 0;                      // the maximum in a varlen batch
  i32 heads = 0;
  i32 sequences = 0;
  i32 head_dim = 0;

  // The rows of each head are divided into tiles; a CTA processes one tile, or several in turn. A
  // head without rows still has one tile, because scales are written for every head.
  i32 tile_rows = 0;
  i32 tiles = 0;  // per head
  Divider by_tiles, by_heads;

  float hadamard_norm = 1;  // 1 / sqrt(n)
  i32 hadamard_size = 1;    // n, the largest power of two that divides head_dim
};

// Parameters of the launch for Q, K and V, and the number of CTAs of each.
struct OperandsParams {
  QuantizeParams q, k, v;
  i32 q_blocks = 0, k_blocks = 0, v_blocks = 0;
};

}  // namespace octavo
