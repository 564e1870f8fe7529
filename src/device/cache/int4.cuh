// SPDX-License-Identifier: Apache-2.0
// Quantizes rows to int4, with the roundings of numeric/int4.h, so that the bits equal the CPU's.
#pragma once

#include "device/ptx/math.cuh"
#include "device/ptx/rounded.cuh"
#include "device/ptx/target.cuh"
#include "device/quantize/rows.cuh"

namespace octavo::append {

inline constexpr float kLargestF16 = 65504.0f;

// Scale and zero of a group of channels, of which kLanes neighbouring lanes hold eight each. All
// lanes of a warp must construct it together.
struct Int4Group {
  u32 bits;  // the scale, and above it the zero, as FP16
  float scale, zero;

  template <int kCount>
  OCTAVO_DEVICE Int4Group(const float (&x)[kCount], int lanes) {
    float least = kLargestF16, most = -kLargestF16;
    bool finite = false;
    OCTAVO_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const float y = ptx::fused_multiply_add(x[i], 0.0f, x[i]);  // NaN if x is not finite
      finite = finite || y == y;
      least = ptx::min_f32(least, y);
      most = ptx::max_f32(most, y);
    }
    const bool any = quantizer::lanes_max(finite ? 1.0f : 0.0f, 1, lanes) != 0.0f;
    least = -quantizer::lanes_max(-least, 1, lanes);
    most = quantizer::lanes_max(most, 1, lanes);
    if (!any) least = most = 0;
    float unused;
    const float first = ptx::add_rn(ptx::max_f32(least, -kLargestF16), 0.0f);  // -0 becomes 0
    const u32 zero_bits = ptx::f16x2_from_f32(first, 0.0f) & 0xffffu;
    ptx::f32_from_f16x2(zero, unused, zero_bits);
    const float range = ptx::subtract_rn(ptx::min_f32(most, kLargestF16), zero);
    const u32 scale_bits =
        ptx::f16x2_from_f32(ptx::divide_rn(ptx::max_f32(range, 0.0f), 15.0f), 0.0f) & 0xffffu;
    ptx::f32_from_f16x2(scale, unused, scale_bits);
    bits = scale_bits | zero_bits << 16;
  }

  // Packs eight channels into a word, four bits each, in the order 0, 2, 4, 6, 1, 3, 5, 7.
  OCTAVO_DEVICE u32 encode(const float (&x)[8]) const {
    const float inverse = scale == 0.0f ? 0.0f : ptx::divide_rn(1.0f, scale);
    u32 word = 0;
    OCTAVO_UNROLL
    for (int i = 0; i < 8; ++i) {
      // 0 times infinity is NaN. A NaN is stored as 0, whether it comes from there or from x.
      const float steps = ptx::multiply_rn(ptx::subtract_rn(x[i], zero), inverse);
      const float y = steps > 15.0f ? 15.0f : steps > 0.0f ? steps : 0.0f;
      const u32 code = ptx::bits_of(ptx::add_rn(y, 12582912.0f)) & 15u;
      word |= code << (i % 2 * 16 + i / 2 * 4);
    }
    return word;
  }
};

}  // namespace octavo::append
