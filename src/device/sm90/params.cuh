// SPDX-License-Identifier: Apache-2.0
// Launch parameters of the Hopper forward kernel. Names shared with ForwardParams mean the same;
// tensors are tensor maps here.
#pragma once

#include "config/sm90_forward.h"
#include "device/core/divider.cuh"
#include "device/core/params.cuh"
#include "device/ptx/tma.cuh"

namespace octavo {

struct Sm90ForwardParams {
  // (column, row, head, batch); rows are tokens, and a varlen batch has batch size 1 here. O's is
  // not used where O is written by plain stores.
  ptx::TensorMap q, k, v, o;

  void* out = nullptr;  // for plain stores
  Strides o_strides;
  float* lse = nullptr;
  Strides lse_strides;

  const i32* cu_seqlens_q = nullptr;
  const i32* cu_seqlens_kv = nullptr;
  i32 tokens_q = 0;
  i32 tokens_kv = 0;

  i32 tiles = 0;      // of all heads and sequences
  i32 row_tiles = 0;  // tiles of one head of tile_heads
  // Heads that tiles are counted for: heads_q, each as often as there are column_tiles, or heads_kv
  // with pack_gqa.
  i32 tile_heads = 0;
  i32 heads_per_kv = 1;
  Divider by_row_tiles, by_tile_heads, by_heads_per_kv;
  i32 sequences = 0;
  // How many heads (of all sequences) form a group, in which tiles are ordered by length; the last
  // group also has the remaining heads.
  i32 heads_per_group = 1;
  i32 head_groups = 1;
  i32 grouped_row_tiles = 0;  // tiles of a head in its group; the rest comes after all groups
  // Positions by which persistent CTAs shift each round; 0: they alternate direction.
  i32 rotation = 0;
  i32 seqlen_q = 0;
  i32 seqlen_kv = 0;
  i32 head_dim_v = 0;  // columns of V and O; the tensor maps know those of Q and K
  // pack_gqa: each query head has 2^query_bits rows, of which seqlen_q are queries.
  i32 query_bits = 0;

  float scale_log2 = 0;
  i32 negate = 0;  // 1: the softmax scale is negative

  i32 bottom_right = 0;
  i32 window_left = 0;
  i32 window_right = 0;
};

// With 8-bit Q and K. The map of 8-bit V is (key, column, head, batch) (config/v_layout.h).
struct Sm90Forward8BitParams : Sm90ForwardParams {
  ScaleParams q_scales, k_scales, v_scales;
  Divider by_q_block_rows, by_k_block_rows;
};

// With an 8-bit output, or amax. With 16-bit inputs the scales are not read.
struct Sm90ForwardOutputParams : Sm90Forward8BitParams {
  OutputParams output;
};

// With modifiers of the scores or padding.
struct Sm90ForwardModifiedParams : Sm90ForwardOutputParams {
  ModifierParams modifiers;
  // With score_tiles, if there is such a tensor: (key, query, head, batch).
  ptx::TensorMap bias, mask;
};

struct Sm90ForwardBlockMaskParams : Sm90ForwardModifiedParams {
  BlockMaskParams block_mask;
};

namespace sm90 {

// The rows by which the tiles of a head begin earlier (row_shift), if they do.
OCTAVO_DEVICE i32 shifted_rows(const Sm90ForwardConfig& c, const Sm90ForwardParams& p) {
  const bool has_mask = p.window_left != kNoLimit || p.window_right != kNoLimit;
  return may_shift_rows(c) && has_mask && p.cu_seqlens_q == nullptr ? row_shift(c, p.seqlen_q) : 0;
}

// A configuration as a type: nvcc would generate a broken host stub for a kernel template whose
// argument is a value of class type.
template <Sm90ForwardConfig kConfig>
struct ConfigOf {
  static constexpr Sm90ForwardConfig value = kConfig;
};

// The kernel parameters of a configuration: only what it reads.
template <bool kHas8BitQk, bool kHasOutput, bool kHasModifiers>
struct SelectParams {
  using Type = Sm90ForwardModifiedParams;
};
template <bool kHas8BitQk>
struct SelectParams<kHas8BitQk, true, false> {
  using Type = Sm90ForwardOutputParams;
};
template <>
struct SelectParams<false, false, false> {
  using Type = Sm90ForwardParams;
};
template <>
struct SelectParams<true, false, false> {
  using Type = Sm90Forward8BitParams;
};
template <class Params, bool kHasBlockMask>
struct AddBlockMask {
  using Type = Params;
};
template <class Params>
struct AddBlockMask<Params, true> {
  using Type = Sm90ForwardBlockMaskParams;
};
template <class Config>
using ParamsOf = typename AddBlockMask<
    typename SelectParams<is_8bit_qk(Config::value), has_output_params(Config::value),
                          any(Config::value.modifiers)>::Type,
    has_block_mask(Config::value)>::Type;

}  // namespace sm90

}  // namespace octavo
