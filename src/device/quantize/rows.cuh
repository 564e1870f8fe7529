// SPDX-License-Identifier: Apache-2.0
// Loads rows into registers, smooths and rotates them. lanes(config) neighbouring lanes share a
// row, eight columns each.
#pragma once

#include "config/quantize.h"
#include "device/core/block_range.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/rounded.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/vector_memory.cuh"
#include "device/quantize/params.cuh"

namespace octavo::quantizer {

// A configuration as a type.
template <QuantizeConfig kValue>
struct ConfigOf {
  static constexpr QuantizeConfig value = kValue;
};

// The row slot and the columns of a thread in its CTA.
template <QuantizeConfig kC>
struct ThreadCoord {
  int slot = static_cast<int>(ptx::thread_index()) / lanes(kC);  // the row slot
  int column = static_cast<int>(ptx::thread_index()) % lanes(kC) * kVector;
};

// Rows [begin, end) of one head of one sequence, counted from the sequence's first.
struct Tile {
  i32 sequence = 0, head = 0, number = 0;
  i32 begin = 0, end = 0;
  i32 first_row = 0;  // the sequence's first row in its tensor
  i32 batch = 0;      // index in the tensor
};

OCTAVO_DEVICE Tile find_tile(const QuantizeParams& p, i32 index) {
  Tile t;
  const i32 head = p.by_tiles.quotient(index);
  t.number = index - head * p.tiles;
  t.sequence = p.by_heads.quotient(head);
  t.head = head - t.sequence * p.heads;
  i32 length = p.len;
  if (p.cu_seqlens != nullptr)
    clamp_span(p.cu_seqlens, t.sequence, p.tokens, p.len, t.first_row, length);
  else
    t.batch = t.sequence;
  // 64 bits, because the number of rows plus a tile may exceed 2^31.
  const i64 begin = static_cast<i64>(t.number) * p.tile_rows;
  t.begin = static_cast<i32>(min_of<i64>(begin, length));
  t.end = static_cast<i32>(min_of<i64>(begin + p.tile_rows, length));
  return t;
}

// Loads the words of the lane's eight columns; columns outside the row are not read and become
// zero. A quantizer that overlaps an earlier grid may have started before that one has written x.
template <QuantizeConfig kC>
OCTAVO_DEVICE void load_words(const u8* row, int column, int columns,
                              u32 (&words)[kVector * element_bytes(kC.from) / 4]) {
  constexpr int kBytes = element_bytes(kC.from);
  constexpr int kPiece = min_of(kC.load_bytes, kVector * kBytes);
  constexpr int kPieces = kVector * kBytes / kPiece;
  OCTAVO_UNROLL
  for (int i = 0; i < kPieces; ++i) {
    const int first = column + i * kPiece / kBytes;
    const u8* from = row + first * kBytes;
    const bool exists = ptx::mask_term(first < columns, true);
    if constexpr (kPiece == 16) {
      u32 x[4] = {};
      if (exists && overlaps(kC)) ptx::load_coherent_b128(from, x);
      if (exists && !overlaps(kC)) ptx::load_global_b128(from, x);
      OCTAVO_UNROLL
      for (int j = 0; j < 4; ++j) words[i * 4 + j] = x[j];
    } else if constexpr (kPiece == 8) {
      words[0] = words[1] = 0;
      if (exists && overlaps(kC)) ptx::load_coherent_b64(from, words[0], words[1]);
      if (exists && !overlaps(kC)) ptx::load_global_b64(from, words[0], words[1]);
    } else if constexpr (kPiece == 1) {
      const u32 code = !exists        ? 0
                       : overlaps(kC) ? ptx::load_coherent_b8(from)
                                      : ptx::load_global_b8(from);
      words[i / 4] = i % 4 == 0 ? code : words[i / 4] | code << i % 4 * 8;
    } else if constexpr (kPiece == 4) {
      words[i] = !exists        ? 0
                 : overlaps(kC) ? ptx::load_coherent_b32(from)
                                : ptx::load_global_b32(from);
    } else {
      const u32 half = !exists        ? 0
                       : overlaps(kC) ? ptx::load_coherent_b16(from)
                                      : ptx::load_global_b16(from);
      words[i / 2] = i % 2 == 0 ? half : words[i / 2] | half << 16;
    }
  }
}

template <Element kFrom>
OCTAVO_DEVICE void widen(const u32 (&words)[kVector * element_bytes(kFrom) / 4],
                         float (&x)[kVector]) {
  OCTAVO_UNROLL
  for (int i = 0; i < kVector; i += 2) {
    if constexpr (kFrom == Element::f32) {
      x[i] = ptx::float_of_bits(words[i]);
      x[i + 1] = ptx::float_of_bits(words[i + 1]);
    } else if constexpr (kFrom == Element::bf16) {
      x[i] = ptx::float_of_bits(words[i / 2] << 16);
      x[i + 1] = ptx::float_of_bits(words[i / 2] & 0xffff0000);
    } else {
      ptx::f32_from_f16x2(x[i], x[i + 1], words[i / 2]);
    }
  }
}

// Butterflies (a + b, a - b) at distance 1, 2, 4, ..., then one multiplication by 1 / sqrt(n), in
// the order of numeric/quantize.h. Distances of eight and more are between lanes.
template <QuantizeConfig kC>
OCTAVO_DEVICE void rotate(const QuantizeParams& p, int column, float (&x)[kVector]) {
  OCTAVO_UNROLL
  for (int distance = 1; distance < kVector; distance *= 2) {
    if (distance >= p.hadamard_size) break;
    OCTAVO_UNROLL
    for (int i = 0; i < kVector; ++i) {
      if ((i & distance) != 0) continue;
      const float a = x[i], b = x[i + distance];
      x[i] = ptx::add_rn(a, b);
      x[i + distance] = ptx::subtract_rn(a, b);
    }
  }
  OCTAVO_UNROLL
  for (int distance = kVector; distance < kC.columns; distance *= 2) {
    if (distance >= p.hadamard_size) break;
    OCTAVO_UNROLL
    for (int i = 0; i < kVector; ++i) {
      const float other = ptx::shuffle_xor(x[i], distance / kVector);
      x[i] = (column & distance) == 0 ? ptx::add_rn(x[i], other) : ptx::subtract_rn(other, x[i]);
    }
  }
  OCTAVO_UNROLL
  for (int i = 0; i < kVector; ++i) x[i] = ptx::multiply_rn(x[i], p.hadamard_norm);
}

// Loads the lane's columns of a row of the tile, in the input format. They are zeros if the tile
// has no such row.
template <QuantizeConfig kC>
OCTAVO_DEVICE void load_row_words(const QuantizeParams& p, const Tile& t, i32 row, int column,
                                  u32 (&words)[kVector * element_bytes(kC.from) / 4]) {
  const i64 element = t.batch * p.x_strides.batch + t.head * p.x_strides.head +
                      (static_cast<i64>(t.first_row) + row) * p.x_strides.row;
  const u8* from = static_cast<const u8*>(p.x) + element * element_bytes(kC.from);
  load_words<kC>(from, column, ptx::mask_term(row < t.end ? p.head_dim : 0, p.head_dim), words);
}

// The offset of row `number` of the `rows` sums or means of a head.
OCTAVO_DEVICE i64 mean_row(const QuantizeParams& p, const Tile& t, i32 number, i32 rows) {
  return ((static_cast<i64>(t.sequence) * p.heads + t.head) * rows + number) * p.mean_columns;
}

// The means of the lane's columns; empty unless rows are smoothed.
template <QuantizeConfig kC>
struct Means {
  float of[kC.smooth ? kVector : 1] = {};

  OCTAVO_DEVICE Means(const QuantizeParams& p, const Tile& t, int column) {
    if constexpr (kC.smooth) {
      if (column >= p.mean_columns) return;
      const float* const from = p.means + mean_row(p, t, 0, 1) + column;
      OCTAVO_UNROLL
      for (int i = 0; i < kVector; ++i) of[i] = ptx::load_written_f32(from + i);
    }
  }
};

// Subtracts the means from a row that exists; others stay 0.
template <QuantizeConfig kC>
OCTAVO_DEVICE void subtract_means(const Means<kC>& means, bool exists, float (&x)[kVector]) {
  if constexpr (kC.smooth) {
    // A NaN keeps its sign, which the subtraction would drop.
    OCTAVO_UNROLL
    for (int i = 0; i < kVector; ++i)
      x[i] = exists && x[i] == x[i] ? ptx::subtract_rn(x[i], means.of[i]) : x[i];
  }
}

// The row as floats, smoothed and rotated. All lanes of a warp must call it together.
template <QuantizeConfig kC>
OCTAVO_DEVICE void load_row(const QuantizeParams& p, const Tile& t, i32 row, int column,
                            const Means<kC>& means, float (&x)[kVector]) {
  u32 words[kVector * element_bytes(kC.from) / 4];
  load_row_words<kC>(p, t, row, column, words);
  widen<kC.from>(words, x);
  if constexpr (kC.smooth) {
    // Rows past the end must stay 0 if they enter the tile's maximum. Otherwise they are not
    // stored, and may hold anything.
    constexpr bool kOfTile = kC.amax_pass || kC.group == ScaleGroup::block;
    subtract_means<kC>(means, !kOfTile || ptx::mask_term(row < t.end, true), x);
  }
  if constexpr (kC.hadamard) rotate<kC>(p, column, x);
}

// The maximum over the lanes whose indices differ in the bits from `first` up to `end`.
OCTAVO_DEVICE float lanes_max(float x, int first, int end) {
  OCTAVO_UNROLL
  for (int mask = first; mask < end; mask *= 2) x = ptx::max_f32(x, ptx::shuffle_xor(x, mask));
  return x;
}

// The maximum over all threads of the CTA. Call once per kernel: the slots are not protected
// against reuse.
template <QuantizeConfig kC>
OCTAVO_DEVICE float cta_max(float x, u32 slots = ptx::shared_base()) {
  const u32 own = slots + ptx::warp_index() * 4;
  x = lanes_max(x, 1, 32);
  if (ptx::lane_index() == 0) ptx::store_shared_f32(own, x);
  ptx::cta_sync();
  OCTAVO_UNROLL
  for (int warp = 0; warp < kC.threads / 32; ++warp)
    x = ptx::max_f32(x, ptx::load_shared_f32(slots + static_cast<u32>(warp) * 4));
  return x;
}

}  // namespace octavo::quantizer
