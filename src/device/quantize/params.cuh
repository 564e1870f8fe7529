// What a quantizer is told at launch. One struct by value; the host fills it.
#pragma once

#include "config/portable.h"
#include "device/core/divider.cuh"
#include "device/core/params.cuh"

namespace octavo {

struct QuantizeParams {
  const void* x = nullptr;
  Strides x_strides;
  // The result: rows of a multiple of 16 bytes, what lies beyond the columns is written too.
  void* out = nullptr;
  Strides out_strides;

  // Scale of (sequence, head, index) at sequence * scale_batch + head * scale_head + index: the
  // index is a row (of the tensor where by_token, else of the sequence), a block or a column. Codes
  // that become values have the caller's: index * scale_stride, of blocks of scale_rows rows (0: of
  // columns).
  float* scales = nullptr;
  i64 scale_batch = 0;
  i64 scale_head = 0;
  i32 scale_stride = 1;
  i32 scale_rows = 1;
  i32 by_token = 0;
  float largest_code = 0;  // what the largest magnitude under a scale becomes
  // Two passes: maxima of the first, `partials` of them for each scale.
  float* partial_amax = nullptr;
  i32 partials = 0;

  // A smoothed K: mean_groups sums of kMeanRows rows for each head, and the means. mean_columns of
  // each, a multiple of eight.
  double* mean_sums = nullptr;
  float* means = nullptr;
  i32 mean_groups = 0;
  i32 mean_columns = 0;

  const i32* cu_seqlens = nullptr;  // null: every sequence has `len` rows
  i32 tokens = 0;                   // rows of the tensor
  i32 len = 0;                      // the maximum, where packed
  i32 heads = 0;
  i32 sequences = 0;
  i32 head_dim = 0;

  // Head by head, the rows are divided into tiles; each is a CTA's, or one of those it takes in
  // turn. There is a tile even where there are no rows: scales are written for every head.
  i32 tile_rows = 0;
  i32 tiles = 0;  // of a head
  Divider by_tiles, by_heads;

  float hadamard_norm = 1;  // 1 / sqrt(n)
  i32 hadamard_size = 1;    // n, the largest power of two that divides head_dim
};

// Of one launch for Q, K and V, and how many CTAs each has.
struct OperandsParams {
  QuantizeParams q, k, v;
  i32 q_blocks = 0, k_blocks = 0, v_blocks = 0;
};

}  // namespace octavo
