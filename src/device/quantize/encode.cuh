// SPDX-License-Identifier: Apache-2.0
// Computes scales from ranges, and encodes values as quantized values, with the roundings of
// numeric/scale.h and numeric/formats.h, so that the bits equal the CPU's.
#pragma once

#include "config/element.h"
#include "config/quantize.h"
#include "config/widening.h"
#include "device/ptx/math.cuh"
#include "device/ptx/rounded.cuh"
#include "device/ptx/target.cuh"

namespace octavo::quantizer {

inline constexpr float kSmallestStep =
    1.17549435e-38f;  // the smallest normal float, so that 1/step is finite
inline constexpr float kSim8Steps = 127.0f;

// |x|, or NaN if x is not finite. Maxima drop the NaN, so a range ignores NaN and infinity.
OCTAVO_DEVICE float finite_magnitude(float x) {
  return ptx::absolute(ptx::fused_multiply_add(x, 0.0f, x));
}

OCTAVO_DEVICE float largest_magnitude(const float (&x)[kVector]) {
  float amax = 0;
  OCTAVO_UNROLL
  for (int i = 0; i < kVector; ++i) amax = ptx::max_f32(amax, finite_magnitude(x[i]));
  return amax;
}

template <Element kTo>
OCTAVO_DEVICE float scale_from_amax(float amax, float max_quantized) {
  if (amax == 0.0f) return 1.0f;
  if constexpr (kTo == Element::sim8) return ptx::max_f32(amax, kSim8Steps * kSmallestStep);
  return ptx::max_f32(ptx::divide_rn(amax, max_quantized), kSmallestStep);
}

// The factor that quantizes values.
template <Element kTo>
OCTAVO_DEVICE float inverse_step(float scale) {
  const float step = kTo == Element::sim8 ? ptx::divide_rn(scale, kSim8Steps) : scale;
  return ptx::divide_rn(widening(kTo), step);
}

// Nearest integer in -127 to 127, ties to even; NaN becomes 0. After adding 1.5 * 2^23 a float has
// no fraction bits.
OCTAVO_DEVICE i32 round_to_int8(float x) {
  const float y = x > 127.0f ? 127.0f : x < -127.0f ? -127.0f : x == x ? x : 0.0f;
  return static_cast<i32>(ptx::bits_of(ptx::add_rn(y, 12582912.0f))) - 0x4b400000;
}

// Quantizes two values into the low sixteen bits, the first lowest. FP8 keeps the sign of a NaN,
// which the instruction drops; the other formats keep it anyway.
template <Element kTo>
OCTAVO_DEVICE u32 encode_pair(float x0, float x1, float inverse0, float inverse1) {
  const float y0 = ptx::multiply_rn(x0, inverse0);
  const float y1 = ptx::multiply_rn(x1, inverse1);
  if constexpr (kTo == Element::e4m3 || kTo == Element::e5m2) {
    const u32 codes =
        kTo == Element::e4m3 ? ptx::e4m3x2_from_f32(y0, y1) : ptx::e5m2x2_from_f32(y0, y1);
    return codes | (ptx::bits_of(x0) >> 24 & 0x80) | (ptx::bits_of(x1) >> 16 & 0x8000);
  }
  constexpr i32 kZero = kTo == Element::sim8 ? 128 : 0;
  const u32 low = static_cast<u32>(round_to_int8(y0) + kZero) & 0xff;
  return low | (static_cast<u32>(round_to_int8(y1) + kZero) & 0xff) << 8;
}

}  // namespace octavo::quantizer
