// SPDX-License-Identifier: Apache-2.0
// Stores quantized values and scales.
#pragma once

#include "device/quantize/encode.cuh"
#include "device/quantize/rows.cuh"

namespace octavo::quantizer {

OCTAVO_DEVICE void fill(float (&x)[kVector], float value) {
  OCTAVO_UNROLL
  for (int i = 0; i < kVector; ++i) x[i] = value;
}

OCTAVO_DEVICE float* scales_of(const QuantizeParams& p, const Tile& t) {
  return p.scales + t.sequence * p.scale_batch + t.head * p.scale_head;
}

// Called by one lane of the row.
OCTAVO_DEVICE void store_row_scale(const QuantizeParams& p, const Tile& t, i32 row, float scale) {
  const i64 index = row + (p.by_token ? static_cast<i64>(t.first_row) : 0);
  if (ptx::mask_term(row < t.end, true)) ptx::store_global_f32(scales_of(p, t) + index, scale);
}

template <QuantizeConfig kC>
OCTAVO_DEVICE void store_row(const QuantizeParams& p, const Tile& t, i32 row, int column,
                             const float (&x)[kVector], const float (&inverse)[kVector]) {
  if (ptx::mask_term(row >= t.end, false)) return;
  const i64 element = t.batch * p.out_strides.batch + t.head * p.out_strides.head +
                      (static_cast<i64>(t.first_row) + row) * p.out_strides.row + column;
  if (ptx::mask_term(column >= p.out_columns, false)) return;
  u8* to = static_cast<u8*>(p.out) + element * element_bytes(kC.to);
  if constexpr (kC.group == ScaleGroup::none) {
    u32 words[4];
    OCTAVO_UNROLL
    for (int i = 0; i < 4; ++i)
      words[i] = kC.to == Element::f16 ? ptx::f16x2_from_f32(x[2 * i], x[2 * i + 1])
                                       : ptx::bf16x2_from_f32(x[2 * i], x[2 * i + 1]);
    ptx::store_global_b128(to, words);
  } else {
    u32 words[2];
    OCTAVO_UNROLL
    for (int i = 0; i < 2; ++i)
      words[i] =
          encode_pair<kC.to>(x[4 * i], x[4 * i + 1], inverse[4 * i], inverse[4 * i + 1]) |
          encode_pair<kC.to>(x[4 * i + 2], x[4 * i + 3], inverse[4 * i + 2], inverse[4 * i + 3])
              << 16;
    ptx::store_global_b64(to, words[0], words[1]);
  }
}

}  // namespace octavo::quantizer
