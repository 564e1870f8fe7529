// SPDX-License-Identifier: Apache-2.0
// The number formats: encode and decode, one value at a time.
//
// Encoding rounds to nearest, ties to even. f16 and bf16 follow IEEE 754 (overflow gives
// infinity, a NaN stays a NaN and becomes quiet); the 8-bit formats saturate. Decoding is exact.
// Scales are applied elsewhere: encode_8bit(format, x) takes x already divided by its step (see
// scale.h).
//
// f16, e4m3 and e5m2 are rounded by one integer function, so that the result depends neither on the
// rounding mode nor on the denormal flags of the thread.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>

#include "octavo/octavo.hpp"

namespace octavo {

constexpr bool is_fp8(DType dtype) { return dtype == DType::e4m3 || dtype == DType::e5m2; }

inline constexpr std::uint32_t kF32Infinity = 0x7F800000;

// Rounds a positive finite float, given as its bits, to kMantissa bits of mantissa under an
// exponent bias of kBias. The result is the bit pattern without a sign. It is not limited: an
// overflow exceeds the format's largest pattern, and the caller must saturate.
template <int kMantissa, int kBias>
constexpr std::uint32_t round_to_minifloat(std::uint32_t magnitude) {
  constexpr int kDrop = 23 - kMantissa;
  constexpr std::uint32_t kSmallestNormal = static_cast<std::uint32_t>(127 - kBias + 1) << 23;
  if (magnitude >= kSmallestNormal) {
    const std::uint32_t tie = (1u << (kDrop - 1)) - 1 + ((magnitude >> kDrop) & 1);
    return ((magnitude + tie) >> kDrop) - (static_cast<std::uint32_t>(127 - kBias) << kMantissa);
  }
  // Denormal in the small format: the unit is 2^(1 - kBias - kMantissa).
  const int exponent = static_cast<int>(magnitude >> 23);
  const int shift = 151 - kBias - kMantissa - exponent;
  if (shift > 24) return 0;
  const std::uint32_t significand = (magnitude & 0x7FFFFF) | 0x800000;
  const std::uint32_t tie = (1u << (shift - 1)) - 1 + ((significand >> shift) & 1);
  return (significand + tie) >> shift;
}

constexpr std::uint16_t f16_from_f32(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const std::uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > kF32Infinity)
    return static_cast<std::uint16_t>(sign | 0x7E00 | ((magnitude >> 13) & 0x1FF));
  const std::uint32_t code = round_to_minifloat<10, 15>(magnitude);
  return static_cast<std::uint16_t>(sign | std::min(code, std::uint32_t{0x7C00}));
}

constexpr float f32_from_f16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t magnitude = bits & 0x7FFF;
  if (magnitude < 0x400) {  // zero or denormal: a whole number of 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
  }
  std::uint32_t widened = (magnitude << 13) + (112u << 23);
  if (magnitude >= 0x7C00) widened = (magnitude << 13) | kF32Infinity;
  if (magnitude > 0x7C00) widened |= 0x400000;  // quiet, as conversion instructions do
  return std::bit_cast<float>(widened | sign);
}

constexpr std::uint16_t bf16_from_f32(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7FFFFFFF) > kF32Infinity) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

constexpr float f32_from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// NaN: 0x7F with the sign kept. Inf saturates.
template <int kMantissa, int kBias, std::uint32_t kLargestCode>
constexpr std::uint8_t fp8_from_f32(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 24) & 0x80;
  const std::uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > kF32Infinity) return static_cast<std::uint8_t>(sign | 0x7F);
  const std::uint32_t code = round_to_minifloat<kMantissa, kBias>(magnitude);
  return static_cast<std::uint8_t>(sign | std::min(code, kLargestCode));
}

constexpr std::uint8_t e4m3_from_f32(float x) { return fp8_from_f32<3, 7, 0x7E>(x); }
constexpr std::uint8_t e5m2_from_f32(float x) { return fp8_from_f32<2, 15, 0x7B>(x); }

// e5m2 is the upper half of f16.
constexpr float f32_from_e5m2(std::uint8_t code) {
  return f32_from_f16(static_cast<std::uint16_t>(code << 8));
}

// Shifted to f16's position, e4m3 is read with exponent bias 15 instead of 7: 2^8 too small.
constexpr float f32_from_e4m3(std::uint8_t code) {
  if ((code & 0x7F) == 0x7F) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    return (code & 0x80) != 0 ? -nan : nan;
  }
  const int as_f16 = ((code & 0x80) << 8) | ((code & 0x7F) << 7);
  return f32_from_f16(static_cast<std::uint16_t>(as_f16)) * 256.0f;
}

// x rounded to an integer from -127 to 127, ties to even; NaN: 0. After adding 1.5 * 2^23 the
// spacing of floats is 1, and the low bits are the two's complement.
constexpr std::int32_t round_to_int8(float x) {
  const float y = x > 127.0f ? 127.0f : x < -127.0f ? -127.0f : x == x ? x : 0.0f;
  return static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(y + 12582912.0f)) - 0x4B400000;
}

// Two's complement.
constexpr std::uint8_t int8_from_f32(float x) {
  return static_cast<std::uint8_t>(round_to_int8(x));
}
constexpr float f32_from_int8(std::uint8_t code) {
  return static_cast<float>(static_cast<std::int8_t>(code));
}

// x in steps; the result is 1 to 255, with zero at 128.
constexpr std::uint8_t sim8_from_f32(float x) {
  return static_cast<std::uint8_t>(round_to_int8(x) + 128);
}
constexpr float f32_from_sim8(std::uint8_t code) {
  return static_cast<float>(static_cast<int>(code) - 128);
}

// `format` must be one of the four 8-bit formats.
constexpr std::uint8_t encode_8bit(DType format, float x) {
  switch (format) {
    case DType::e4m3:
      return e4m3_from_f32(x);
    case DType::e5m2:
      return e5m2_from_f32(x);
    case DType::int8:
      return int8_from_f32(x);
    default:
      return sim8_from_f32(x);
  }
}

// For numbers whose difference does not overflow. g++ 12 compiles std::min and ?: in round_8bit to
// a branch and then does not vectorize the least-squares search (410 ns per value instead of 110).
constexpr std::int32_t branchless_min(std::int32_t a, std::int32_t b) {
  return b + ((a - b) & ((a - b) >> 31));
}

// decode_8bit(encode_8bit(x)) of a finite x without a branch, for searches that try many scales on
// every value. Adding and subtracting 2^23 units of the binade of x rounds to whole units.
template <DType kFormat>
constexpr float round_8bit(float x) {
  constexpr float kLargest = kFormat == DType::e4m3   ? 448.0f
                             : kFormat == DType::e5m2 ? 57344.0f
                                                      : 127.0f;
  constexpr bool kInteger = kFormat == DType::int8 || kFormat == DType::sim8;
  constexpr std::int32_t kMantissa = kFormat == DType::e4m3 ? 3 : 2;
  constexpr std::int32_t kSmallestExponent = kFormat == DType::e4m3 ? 127 - 6 : 127 - 14;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  // Positive floats compare as integers do.
  const std::int32_t cut = branchless_min(static_cast<std::int32_t>(bits & 0x7FFFFFFF),
                                          std::bit_cast<std::int32_t>(kLargest));
  const std::int32_t exponent = -branchless_min(-(cut >> 23), -kSmallestExponent);
  const float units = kInteger ? 0x1p23f : std::bit_cast<float>((exponent + 23 - kMantissa) << 23);
  const float magnitude = std::bit_cast<float>(cut);
  const float rounded = (magnitude + units) - units;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(rounded) | (bits & 0x80000000));
}

// All 256 values of a format, decoded. Loops should fetch the table once.
const std::array<float, 256>& decode_table(DType format);
inline float decode_8bit(DType format, std::uint8_t code) { return decode_table(format)[code]; }

// The largest magnitude of a format in steps: 448, 57344, 127, 127.
constexpr float largest(DType format) {
  return format == DType::e4m3 ? 448.0f : format == DType::e5m2 ? 57344.0f : 127.0f;
}
// The same with the caller's bound (Scales::max_quantized); 0: none.
constexpr float max_quantized(DType format, float bound) {
  return bound == 0 ? largest(format) : bound;
}

// One element of any dtype, without a scale. `store_element` takes f32, f16 and bf16 only.
float load_element(DType dtype, const void* data, std::int64_t index);
void store_element(DType dtype, void* data, std::int64_t index, float x);

}  // namespace octavo
