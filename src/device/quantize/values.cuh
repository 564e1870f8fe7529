// SPDX-License-Identifier: Apache-2.0
// Transposes V and permutes its keys (config/v_layout.h), for Hopper's 8-bit kernels. The input is
// 16-bit or 32-bit V, which is quantized, or V that the caller has quantized.
//
// A CTA owns kValueKeys keys of one head, a warp sixteen of them. In each slab of kSlabColumns
// columns a lane holds four keys of eight columns, and packs the four keys of a column into a word.
// Shared memory has a line of 128 bytes for every column, whose 16-byte chunks are swizzled by the
// column. The words that a warp writes hit every bank once, and so do the reads of eight lanes that
// then store 128 bytes of a column.
//
// Column maxima: lanes with the same columns exchange halves until each has two columns left; the
// warps then combine theirs in shared memory. In this last step thread n has column column_of(n).
// This order avoids bank conflicts when the threads write the factors of the columns.
#pragma once

#include "config/v_layout.h"
#include "device/quantize/encode.cuh"
#include "device/quantize/rows.cuh"
#include "device/quantize/store.cuh"

namespace octavo::quantizer {

template <QuantizeConfig kC>
inline constexpr int kSlabs = kC.columns / kSlabColumns;
// How many slabs a lane holds at once: all of them, or in f32, for lack of registers, one.
template <QuantizeConfig kC>
inline constexpr int kHeldSlabs = element_bytes(kC.from) == 4 ? 1 : kSlabs<kC>;

// Four keys of a group of sixteen, eight columns of a slab, in the input format.
template <QuantizeConfig kC>
struct FourKeys {
  u32 words[4][kVector * element_bytes(kC.from) / 4];
};

OCTAVO_DEVICE int lane_word() { return static_cast<int>(ptx::lane_index()) / 8; }
OCTAVO_DEVICE int lane_column() { return static_cast<int>(ptx::lane_index()) % 8 * kVector; }

// Loads the lane's four keys of the warp's group of sixteen, which begins at key `first`. Keys that
// do not exist become zeros.
template <QuantizeConfig kC>
OCTAVO_DEVICE void load_four_keys(const QuantizeParams& p, const Tile& t, i32 first, int slab,
                                  FourKeys<kC>& keys) {
  const i32 row = first + static_cast<i32>(ptx::warp_index()) * kKeyGroup;
  OCTAVO_UNROLL
  for (int i = 0; i < 4; ++i)
    load_row_words<kC>(p, t, row + key_of_byte(lane_word(), i), slab * kSlabColumns + lane_column(),
                       keys.words[i]);
}

// Updates the column maxima with four more keys.
template <QuantizeConfig kC>
OCTAVO_DEVICE void widen_maxima(const FourKeys<kC>& keys, float (&amax)[kVector]) {
  OCTAVO_UNROLL
  for (int key = 0; key < 4; ++key) {
    float x[kVector];
    widen<kC.from>(keys.words[key], x);
    OCTAVO_UNROLL
    for (int i = 0; i < kVector; ++i) amax[i] = ptx::max_f32(amax[i], finite_magnitude(x[i]));
  }
}

OCTAVO_DEVICE int column_of(int n) {
  const int step = n / 32 % 2, lane = n % 32, odd = lane / 8 % 2;
  return n / kSlabColumns * kSlabColumns + lane % 8 * kVector + odd * 4 + (step ^ odd) * 2 +
         lane / 16;
}

// Exchanges maxima with the partner lane. Each of the two keeps one half of the columns.
template <int kColumns>
OCTAVO_DEVICE void keep_half(const float (&low)[kColumns], const float (&high)[kColumns], int mask,
                             float (&kept)[kColumns]) {
  const bool upper = (ptx::lane_index() & static_cast<u32>(mask)) != 0;
  OCTAVO_UNROLL
  for (int i = 0; i < kColumns; ++i)
    kept[i] =
        ptx::max_f32(upper ? high[i] : low[i], ptx::shuffle_xor(upper ? low[i] : high[i], mask));
}

// Combines the maxima of all warps. Call once per kernel. Threads n < columns get the maximum of
// column_of(n).
template <QuantizeConfig kC>
OCTAVO_DEVICE float cta_column_max(const float (&amax)[kSlabs<kC>][kVector]) {
  const u32 parts = ptx::shared_base() + static_cast<u32>(value_smem(kC).parts);
  const u32 own = parts + (ptx::warp_index() * kC.columns + ptx::lane_index()) * 4;
  const bool odd = (ptx::lane_index() & 8) != 0;
  OCTAVO_UNROLL
  for (int slab = 0; slab < kSlabs<kC>; ++slab) {
    const float(&x)[kVector] = amax[slab];
    const float even_columns[4] = {x[0], x[2], x[4], x[6]};
    const float odd_columns[4] = {x[1], x[3], x[5], x[7]};
    float four[4], two[2];
    keep_half(even_columns, odd_columns, 16, four);
    keep_half({four[0], four[1]}, {four[2], four[3]}, 8, two);
    OCTAVO_UNROLL
    for (int step = 0; step < 2; ++step)
      ptx::store_shared_f32(own + static_cast<u32>(slab * kSlabColumns + step * 32) * 4,
                            odd ? two[1 - step] : two[step]);
  }
  ptx::cta_sync();
  float most = 0;
  if (ptx::thread_index() >= kC.columns) return most;
  OCTAVO_UNROLL
  for (int warp = 0; warp < kC.threads / 32; ++warp)
    most = ptx::max_f32(
        most, ptx::load_shared_f32(
                  parts + (static_cast<u32>(warp * kC.columns) + ptx::thread_index()) * 4));
  return most;
}

// Combines partial maxima from global memory. All threads that share a column read a part of them.
template <QuantizeConfig kC>
OCTAVO_DEVICE float partial_column_max(const QuantizeParams& p, const Tile& t) {
  constexpr int kReaders = kC.threads / kC.columns;
  const u32 parts = ptx::shared_base() + static_cast<u32>(value_smem(kC).parts);
  const int thread = static_cast<int>(ptx::thread_index());
  const int reader = thread / kC.columns;
  const float* from = p.partial_amax +
                      (static_cast<i64>(t.sequence) * p.heads + t.head) * p.partials * kC.columns +
                      column_of(thread % kC.columns);
  float amax = 0;
  for (i32 n = reader; n < p.partials; n += kReaders)
    amax = ptx::max_f32(amax, ptx::load_written_f32(from + static_cast<i64>(n) * kC.columns));
  if constexpr (kReaders > 1) {
    ptx::store_shared_f32(parts + static_cast<u32>(thread) * 4, amax);
    ptx::cta_sync();
    if (thread >= kC.columns) return amax;
    OCTAVO_UNROLL
    for (int i = 1; i < kReaders; ++i)
      amax = ptx::max_f32(
          amax, ptx::load_shared_f32(parts + static_cast<u32>(i * kC.columns + thread) * 4));
  }
  return amax;
}

// The offset of the factors of eight columns: the first four of each eight, then the others.
template <QuantizeConfig kC>
OCTAVO_DEVICE u32 inverse_at(int column) {
  const int word = column / 4 % 2 * (kC.columns / 2) + column / 8 * 4 + column % 4;
  return ptx::shared_base() + static_cast<u32>(value_smem(kC).inverse + word * 4);
}

// Threads n < columns store the factor of column_of(n) in shared memory, and its scale in global
// memory if requested.
template <QuantizeConfig kC>
OCTAVO_DEVICE void leave_inverse(const QuantizeParams& p, const Tile& t, float amax) {
  if (ptx::thread_index() >= kC.columns) return;
  const int column = column_of(static_cast<int>(ptx::thread_index()));
  const float scale = scale_from_amax<kC.to>(amax, p.max_quantized);
  ptx::store_shared_f32(inverse_at<kC>(column), inverse_step<kC.to>(scale));
  if (t.number == 0 && ptx::mask_term(column < p.head_dim, true))
    ptx::store_global_f32(scales_of(p, t) + column, scale);
}

template <QuantizeConfig kC>
OCTAVO_DEVICE void take_inverses(int slab, float (&inverse)[kVector]) {
  OCTAVO_UNROLL
  for (int half = 0; half < 2; ++half) {
    u32 words[4];
    ptx::load_shared_b128(inverse_at<kC>(slab * kSlabColumns + lane_column() + half * 4), words);
    OCTAVO_UNROLL
    for (int i = 0; i < 4; ++i) inverse[half * 4 + i] = ptx::float_of_bits(words[i]);
  }
}

// Transposes four rows of 8-bit values into words of four keys.
OCTAVO_DEVICE void transpose_bytes(const u32 (&rows)[4][2], u32 (&words)[kVector]) {
  OCTAVO_UNROLL
  for (int half = 0; half < 2; ++half) {
    const u32 low01 = ptx::permute_bytes(rows[0][half], rows[1][half], 0x5140);
    const u32 low23 = ptx::permute_bytes(rows[2][half], rows[3][half], 0x5140);
    const u32 high01 = ptx::permute_bytes(rows[0][half], rows[1][half], 0x7362);
    const u32 high23 = ptx::permute_bytes(rows[2][half], rows[3][half], 0x7362);
    words[half * 4] = ptx::permute_bytes(low01, low23, 0x5410);
    words[half * 4 + 1] = ptx::permute_bytes(low01, low23, 0x7632);
    words[half * 4 + 2] = ptx::permute_bytes(high01, high23, 0x5410);
    words[half * 4 + 3] = ptx::permute_bytes(high01, high23, 0x7632);
  }
}

template <QuantizeConfig kC>
OCTAVO_DEVICE void encode_four_keys(const FourKeys<kC>& keys, const float (&inverse)[kVector],
                                    u32 (&words)[kVector]) {
  if constexpr (element_bytes(kC.from) == 1) {
    transpose_bytes(keys.words, words);
  } else {
    float x[4][kVector];
    OCTAVO_UNROLL
    for (int i = 0; i < 4; ++i) widen<kC.from>(keys.words[i], x[i]);
    OCTAVO_UNROLL
    for (int i = 0; i < kVector; ++i)
      words[i] = encode_pair<kC.to>(x[0][i], x[1][i], inverse[i], inverse[i]) |
                 encode_pair<kC.to>(x[2][i], x[3][i], inverse[i], inverse[i]) << 16;
  }
  if constexpr (kC.to == Element::int8) {
    OCTAVO_UNROLL
    for (int i = 0; i < kVector; ++i) words[i] ^= kSignBits;
  }
}

// The shared-memory address of the tile's key group `group` of a column.
template <QuantizeConfig kC>
OCTAVO_DEVICE u32 staged_group(int column, int group) {
  const int piece = group ^ column / kVector % 8;
  return ptx::shared_base() +
         static_cast<u32>(value_smem(kC).parts + column * kValueKeys + piece * kKeyGroup);
}

template <QuantizeConfig kC>
OCTAVO_DEVICE void stage(int slab, const u32 (&words)[kVector]) {
  OCTAVO_UNROLL
  for (int i = 0; i < kVector; ++i)
    ptx::store_shared_b32(staged_group<kC>(slab * kSlabColumns + lane_column() + i,
                                           static_cast<int>(ptx::warp_index())) +
                              static_cast<u32>(lane_word()) * 4,
                          words[i]);
}

template <QuantizeConfig kC>
OCTAVO_DEVICE void store_columns(const QuantizeParams& p, const Tile& t) {
  constexpr int kGroups = kValueKeys / kKeyGroup;
  const i32 first =
      t.begin + (p.cu_seqlens == nullptr ? 0 : varlen_v_begin(t.first_row, t.sequence));
  u8* const to =
      static_cast<u8*>(p.out) + t.batch * p.out_strides.batch + t.head * p.out_strides.head + first;
  OCTAVO_UNROLL
  for (int i = 0; i < kC.columns * kGroups; i += kC.threads) {
    const int n = i + static_cast<int>(ptx::thread_index());
    const int column = n / kGroups, group = n % kGroups;
    if (ptx::mask_term(column >= p.head_dim, false) ||
        ptx::mask_term(t.begin + group * kKeyGroup >= t.end, false))
      continue;
    u32 words[4];
    ptx::load_shared_b128(staged_group<kC>(column, group), words);
    ptx::store_global_b128(to + column * p.out_strides.row + group * kKeyGroup, words);
  }
}

}  // namespace octavo::quantizer
