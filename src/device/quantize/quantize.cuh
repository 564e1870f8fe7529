// SPDX-License-Identifier: Apache-2.0
// The quantizer kernels. They read f32, f16 or bf16 and write 8-bit values with their scales, or
// 16-bit values without scales.
//
//   scale = scale_from_amax(max |x| of a group)     quantized = encode(x * (1 / step(scale)))
//
// A CTA owns a tile: rows of one head of one sequence. lanes(config) neighbouring lanes share a
// row, eight columns each. How the scale is found depends on the group:
//
//   row      the maximum over the lanes of a row
//   block    the tile is the block: its rows are read twice, the second time from a cache
//   head     an earlier launch (amax_pass) writes one maximum per tile. Every CTA that needs a
//   tensor   scale combines the maxima of its head or tensor; a maximum does not depend on the
//   channel  order, so all find the same scale. The first tile stores it.
//
// Shared memory: one float per warp, or a row of them in the first pass over channels, followed by
// the tile that is transposed. Each barrier is used once.
#pragma once

#include "device/ptx/warpgroup.cuh"
#include "device/quantize/dequantize.cuh"
#include "device/quantize/encode.cuh"
#include "device/quantize/means.cuh"
#include "device/quantize/rows.cuh"
#include "device/quantize/store.cuh"
#include "device/quantize/values.cuh"

namespace octavo::quantizer {

template <QuantizeConfig kC>
OCTAVO_DEVICE float tile_amax(const QuantizeParams& p, const Tile& t, const ThreadCoord<kC>& at) {
  const Means<kC> means(p, t, at.column);
  float amax = 0;
  for (i32 row = t.begin; row < t.end; row += rows_at_once(kC)) {
    float x[kVector];
    load_row<kC>(p, t, row + at.slot, at.column, means, x);
    amax = ptx::max_f32(amax, largest_magnitude(x));
  }
  return amax;
}

// Column maxima over all rows of the tile: over lanes, then over warps; `to` has config.columns
// floats.
template <QuantizeConfig kC>
OCTAVO_DEVICE void store_column_amax(const QuantizeParams& p, const Tile& t,
                                     const ThreadCoord<kC>& at, float* to) {
  const Means<kC> means(p, t, at.column);
  float amax[kVector] = {};
  for (i32 row = t.begin; row < t.end; row += rows_at_once(kC)) {
    float x[kVector];
    load_row<kC>(p, t, row + at.slot, at.column, means, x);
    OCTAVO_UNROLL
    for (int i = 0; i < kVector; ++i) amax[i] = ptx::max_f32(amax[i], finite_magnitude(x[i]));
  }
  const u32 slots = ptx::shared_base();
  const u32 own = slots + (ptx::warp_index() * kC.columns + static_cast<u32>(at.column)) * 4;
  OCTAVO_UNROLL
  for (int i = 0; i < kVector; ++i) {
    const float of_warp = lanes_max(amax[i], lanes(kC), 32);
    if (ptx::lane_index() < static_cast<u32>(lanes(kC)))
      ptx::store_shared_f32(own + static_cast<u32>(i) * 4, of_warp);
  }
  ptx::cta_sync();
  for (int c = static_cast<int>(ptx::thread_index()); c < kC.columns; c += kC.threads) {
    float x = 0;
    for (int warp = 0; warp < kC.threads / 32; ++warp)
      x = ptx::max_f32(x,
                       ptx::load_shared_f32(slots + static_cast<u32>(warp * kC.columns + c) * 4));
    ptx::store_global_f32(to + c, x);
  }
}

// The first of two passes: writes partial maxima.
template <QuantizeConfig kC>
OCTAVO_DEVICE void find_partial_amax(const QuantizeParams& p) {
  const ThreadCoord<kC> at;
  const i32 block = ptx::block_index_x();
  if constexpr (kC.group == ScaleGroup::channel) {
    store_column_amax<kC>(p, find_tile(p, block), at,
                          p.partial_amax + static_cast<i64>(block) * kC.columns);
    return;
  }
  // Each CTA writes one maximum. A whole tensor can have a great many tiles, so a CTA takes several
  // of them in turn.
  float amax = 0;
  for (i64 tile = block; tile < static_cast<i64>(p.sequences) * p.heads * p.tiles;
       tile += ptx::grid_size_x())
    amax = ptx::max_f32(amax, tile_amax<kC>(p, find_tile(p, static_cast<i32>(tile)), at));
  amax = cta_max<kC>(amax);
  if (ptx::thread_index() == 0) ptx::store_global_f32(p.partial_amax + block, amax);
}

// The range of the group that the tile belongs to. All threads of the CTA get the same value.
template <QuantizeConfig kC>
OCTAVO_DEVICE float group_amax(const QuantizeParams& p, const Tile& t, const ThreadCoord<kC>& at) {
  if constexpr (kC.group == ScaleGroup::block) return cta_max<kC>(tile_amax<kC>(p, t, at));
  const float* from = p.partial_amax;
  if constexpr (kC.group == ScaleGroup::head)
    from += (static_cast<i64>(t.sequence) * p.heads + t.head) * p.partials;
  float amax = 0;
  for (i32 i = static_cast<i32>(ptx::thread_index()); i < p.partials; i += kC.threads)
    amax = ptx::max_f32(amax, ptx::load_written_f32(from + i));
  return cta_max<kC>(amax);
}

// The ranges of the lane's columns.
template <QuantizeConfig kC>
OCTAVO_DEVICE void column_amax(const QuantizeParams& p, const Tile& t, const ThreadCoord<kC>& at,
                               float (&amax)[kVector]) {
  const float* from = p.partial_amax +
                      (static_cast<i64>(t.sequence) * p.heads + t.head) * p.partials * kC.columns +
                      at.column;
  fill(amax, 0);
  for (i32 n = 0; n < p.partials; ++n, from += kC.columns) {
    OCTAVO_UNROLL
    for (int i = 0; i < kVector; ++i)
      amax[i] = ptx::max_f32(amax[i], ptx::load_written_f32(from + i));
  }
}

// The factors that quantize the lane's columns, for groups whose factors do not depend on the row.
// Stores the group's scales if this tile is their writer.
template <QuantizeConfig kC>
OCTAVO_DEVICE void find_inverses(const QuantizeParams& p, const Tile& t, const ThreadCoord<kC>& at,
                                 float (&inverse)[kVector]) {
  if constexpr (kC.group == ScaleGroup::channel) {
    float amax[kVector];
    column_amax<kC>(p, t, at, amax);
    OCTAVO_UNROLL
    for (int i = 0; i < kVector; ++i) {
      const float scale = scale_from_amax<kC.to>(amax[i], p.max_quantized);
      inverse[i] = inverse_step<kC.to>(scale);
      if (t.number == 0 && at.slot == 0 && ptx::mask_term(at.column + i < p.head_dim, true))
        ptx::store_global_f32(scales_of(p, t) + at.column + i, scale);
    }
  } else if constexpr (kC.group != ScaleGroup::none && kC.group != ScaleGroup::row) {
    const float scale = scale_from_amax<kC.to>(group_amax<kC>(p, t, at), p.max_quantized);
    fill(inverse, inverse_step<kC.to>(scale));
    if (ptx::thread_index() != 0) return;
    // A head without rows has a tile but no block, so no scale of a block. The scale of a tensor
    // has one writer.
    const bool writes = kC.group == ScaleGroup::block    ? p.len > 0
                        : kC.group == ScaleGroup::tensor ? ptx::block_index_x() == 0
                                                         : t.number == 0;
    if (writes)
      ptx::store_global_f32(scales_of(p, t) + (kC.group == ScaleGroup::block ? t.number : 0),
                            scale);
  }
}

// Quantizes every row of the tile.
template <QuantizeConfig kC>
OCTAVO_DEVICE void write_quantized(const QuantizeParams& p) {
  const ThreadCoord<kC> at;
  const Tile t = find_tile(p, ptx::block_index_x());
  float inverse[kVector] = {};
  find_inverses<kC>(p, t, at, inverse);
  const Means<kC> means(p, t, at.column);
  for (i32 base = t.begin; base < t.end; base += rows_at_once(kC)) {
    const i32 row = base + at.slot;
    float x[kVector];
    load_row<kC>(p, t, row, at.column, means, x);
    if constexpr (kC.group == ScaleGroup::row) {
      float amax = 0;
      OCTAVO_UNROLL
      for (int i = 0; i < kVector; ++i) amax = ptx::max_f32(amax, finite_magnitude(x[i]));
      const float scale = scale_from_amax<kC.to>(lanes_max(amax, 1, lanes(kC)), p.max_quantized);
      fill(inverse, inverse_step<kC.to>(scale));
      if (at.column == 0) store_row_scale(p, t, row, scale);
    }
    store_row<kC>(p, t, row, at.column, x, inverse);
  }
}

// Quantizes one tile into the transposed layout of values.cuh.
template <QuantizeConfig kC>
OCTAVO_DEVICE void write_values(const QuantizeParams& p, i32 tile) {
  constexpr bool kByChannel = kC.operands || kC.group == ScaleGroup::channel;
  const Tile t = find_tile(p, tile);
  FourKeys<kC> keys[kHeldSlabs<kC>];
  OCTAVO_UNROLL
  for (int slab = 0; slab < kHeldSlabs<kC>; ++slab)
    load_four_keys<kC>(p, t, t.begin, slab, keys[slab]);
  float inverse[kVector] = {};
  if constexpr (kByChannel) {
    leave_inverse<kC>(p, t, partial_column_max<kC>(p, t));
    ptx::cta_sync();
  } else {
    find_inverses<kC>(p, t, ThreadCoord<kC>(), inverse);
  }
  OCTAVO_UNROLL
  for (int slab = 0; slab < kSlabs<kC>; ++slab) {
    if (slab >= kHeldSlabs<kC>) load_four_keys<kC>(p, t, t.begin, slab, keys[0]);
    if constexpr (kByChannel) take_inverses<kC>(slab, inverse);
    u32 words[kVector];
    encode_four_keys<kC>(keys[slab % kHeldSlabs<kC>], inverse, words);
    stage<kC>(slab, words);
  }
  ptx::cta_sync();
  store_columns<kC>(p, t);
}

template <class Config>
OCTAVO_KERNEL(Config::value.threads, ctas_of_sm(Config::value))
quantize_rows(const OCTAVO_GRID_CONSTANT QuantizeParams p) {
  constexpr QuantizeConfig kC = Config::value;
  static_assert(
      kC.columns >= kVector && kC.columns <= 32 * kVector && (kC.columns & (kC.columns - 1)) == 0,
      "a row is shared by a power of two of lanes of one warp");
  constexpr bool kFrom8Bit = element_bytes(kC.from) == 1;
  static_assert((kC.group == ScaleGroup::none) == (kFrom8Bit || element_bytes(kC.to) == 2),
                "8-bit results have scales; 16-bit results and 8-bit inputs have none");
  static_assert(!kFrom8Bit || dequantizes(kC) || (kC.transposed && kC.from == kC.to),
                "8-bit inputs are dequantized, or only transposed");
  static_assert(!dequantizes(kC) || !(kC.transposed || kC.hadamard || kC.amax_pass),
                "8-bit inputs are dequantized row by row");
  static_assert(!kC.transposed || kC.amax_pass ||
                    (kC.columns % kSlabColumns == 0 && kC.threads == kValueThreads && !kC.hadamard),
                "V is transposed by 64 columns and sixteen keys a warp, and not rotated");
  static_assert(kC.load_bytes == 16 || kC.load_bytes == element_bytes(kC.from),
                "a load has 16 bytes or one element");
  static_assert(!kC.amax_pass || two_passes(kC.group), "rows and blocks need no first pass");
  static_assert(!kC.smooth || !(kC.transposed || kFrom8Bit || kC.group == ScaleGroup::channel),
                "only K is smoothed, when it is quantized");
  if constexpr (overlaps(kC)) {
    ptx::wait_for_earlier_grids();
    ptx::launch_dependent_grids();
  }
  if constexpr (kC.mean_pass == 1)
    add_up_rows<kC>(p);
  else if constexpr (kC.mean_pass == 2)
    find_means<kC>(p);
  else if constexpr (dequantizes(kC))
    write_decoded<kC>(p);
  else if constexpr (kC.amax_pass)
    find_partial_amax<kC>(p);
  else if constexpr (kC.transposed)
    // The tiles that the previous pass read last may still be cached, so this pass runs in reverse.
    write_values<kC>(p, ptx::grid_size_x() - 1 - ptx::block_index_x());
  else
    write_quantized<kC>(p);
}

}  // namespace octavo::quantizer
