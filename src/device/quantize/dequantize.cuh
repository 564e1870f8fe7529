// SPDX-License-Identifier: Apache-2.0
// Dequantizes the caller's 8-bit K and V to 16 bits, for a forward kernel whose Q is 16-bit.
//
// x = quantized * step(scale), rounded to f32 and then to 16 bits
#pragma once

#include "device/quantize/rows.cuh"
#include "device/quantize/store.cuh"

namespace octavo::quantizer {

// Decodes one 8-bit value. FP8 goes through f16: e5m2 is the upper half of an f16, and e4m3 shifted
// into an f16 has an exponent that is 8 too small. This needs no FP8 instruction on any chip.
template <Element kFrom>
OCTAVO_DEVICE float decoded(u32 code) {
  if constexpr (kFrom == Element::int8)
    return ptx::float_of_int(static_cast<i32>(code << 24) >> 24);
  else if constexpr (kFrom == Element::sim8)
    return ptx::float_of_int(static_cast<i32>(code) - 128);
  float x, unused;
  if constexpr (kFrom == Element::e5m2) {
    ptx::f32_from_f16x2(x, unused, code << 8);
    return x;
  }
  ptx::f32_from_f16x2(x, unused, (code & 0x80) << 8 | (code & 0x7f) << 7);
  const float nan = ptx::float_of_bits(0x7fc00000u | code << 24);
  return (code & 0x7f) == 0x7f ? nan : ptx::multiply_rn(x, 256.0f);
}

// The scale of one column of a row, as a factor.
template <QuantizeConfig kC>
OCTAVO_DEVICE float step_at(const QuantizeParams& p, const Tile& t, i32 row, int column) {
  const i64 token = row + (p.by_token ? static_cast<i64>(t.first_row) : 0);
  const i64 index = p.scale_rows == 0 ? min_of(column, p.head_dim - 1) : token / p.scale_rows;
  const float scale = ptx::load_written_f32(scales_of(p, t) + index * p.scale_stride);
  return kC.from == Element::sim8 ? ptx::divide_rn(scale, kSim8Steps) : scale;
}

// Writes every row of the tile.
template <QuantizeConfig kC>
OCTAVO_DEVICE void write_decoded(const QuantizeParams& p) {
  const ThreadCoord<kC> at;
  const Tile t = find_tile(p, ptx::block_index_x());
  for (i32 base = t.begin; base < t.end; base += rows_at_once(kC)) {
    const i32 row = base + at.slot;
    u32 words[2];
    load_row_words<kC>(p, t, row, at.column, words);
    float x[kVector], step = 0;
    OCTAVO_UNROLL
    for (int i = 0; i < kVector; ++i) {
      if (i == 0 || p.scale_rows == 0)
        step = step_at<kC>(p, t, min_of(row, t.end - 1), at.column + i);
      const float value = decoded<kC.from>(words[i / 4] >> i % 4 * 8 & 0xff);
      // Padding columns are written too: sim8's byte 0 is not the value 0.
      x[i] = at.column + i < p.head_dim ? ptx::multiply_rn(value, step) : 0.0f;
    }
    const float unused[kVector] = {};
    store_row<kC>(p, t, row, at.column, x, unused);
  }
}

}  // namespace octavo::quantizer
