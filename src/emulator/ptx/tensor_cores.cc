// SPDX-License-Identifier: Apache-2.0
#include "emulator/ptx/tensor_cores.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace octavo::emulator {
namespace {

// Decodes a format's bits; `special`: the smallest magnitude that is not a number.
template <int kExponent, int kFraction, int kBias, bool kInfinity, std::uint32_t kSpecialFrom>
inline Parts parts_of(std::uint32_t bits) {
  const std::uint32_t magnitude = bits & ((1u << (kExponent + kFraction)) - 1);
  const std::int32_t sign = -static_cast<std::int32_t>(bits >> (kExponent + kFraction) & 1);
  if (magnitude == 0) return {0, Parts::kZero};
  if (magnitude >= kSpecialFrom) {
    const std::int32_t infinite = kInfinity && magnitude == kSpecialFrom ? 1 : 0;
    return {(infinite ^ sign) - sign, Parts::kSpecial};
  }
  const auto exponent = static_cast<std::int32_t>(magnitude >> kFraction);
  const auto fraction = static_cast<std::int32_t>(magnitude & ((1u << kFraction) - 1));
  const std::int32_t significand = exponent != 0 ? fraction | 1 << kFraction : fraction;
  return {(significand ^ sign) - sign, (exponent != 0 ? exponent : 1) - kBias};
}

inline Parts parts_of_float(float x) {
  return parts_of<8, 23, 127, true, 0x7f800000u>(std::bit_cast<std::uint32_t>(x));
}

// significand >> shift, truncated toward zero.
std::int64_t aligned(std::int64_t significand, int shift) {
  const std::int64_t sign = significand >> 63;
  std::uint64_t magnitude = static_cast<std::uint64_t>((significand ^ sign) - sign);
  magnitude = shift > 62 ? 0 : magnitude >> shift;
  return (static_cast<std::int64_t>(magnitude) ^ sign) - sign;
}

// sum * 2^(exponent - fraction), with at most `keep` fraction bits, truncated toward zero.
float cut_to_float(std::int64_t sum, int exponent, int fraction, int keep) {
  if (sum == 0) return 0.0f;
  const bool negative = sum < 0;
  std::uint64_t magnitude = static_cast<std::uint64_t>(negative ? -sum : sum);
  int scale = exponent - fraction;
  const int leading = 63 - std::countl_zero(magnitude);
  // Below the normal range a float has whole steps of 2^-149.
  const int drop = std::max(leading - keep, -149 - scale);
  if (drop > 0) {
    magnitude = drop > 63 ? 0 : magnitude >> drop;
    scale += drop;
  }
  // Both factors and their product are exact; values that are too large become infinity.
  const double power = std::bit_cast<double>(static_cast<std::uint64_t>(scale + 1023) << 52);
  const auto result = static_cast<float>(static_cast<double>(magnitude) * power);
  return negative ? -result : result;
}

// The sum of a group in which an operand is an infinity or a NaN.
float special_sum(const TileA& a, const TileB& b, int at, int b_at, int terms, float c) {
  constexpr float kNan = std::bit_cast<float>(0x7fffffffu);
  bool positive = c == std::numeric_limits<float>::infinity();
  bool negative = c == -std::numeric_limits<float>::infinity();
  if (std::isnan(c)) return kNan;
  for (int i = 0; i < terms; ++i) {
    const int in_a = at + i, in_b = b_at + i * kTileColumns;
    if (a.exponent[in_a] != Parts::kSpecial && b.exponent[in_b] != Parts::kSpecial) continue;
    const std::int32_t sign = a.significand[in_a] * b.significand[in_b];
    if (sign == 0) return kNan;  // a NaN, or infinity times 0
    positive = positive || sign > 0;
    negative = negative || sign < 0;
  }
  if (positive && negative) return kNan;
  return positive ? std::numeric_limits<float>::infinity()
                  : -std::numeric_limits<float>::infinity();
}

}  // namespace

int fraction_bits(Number format) {
  switch (format) {
    case Number::f16:
      return 10;
    case Number::bf16:
      return 7;
    case Number::e4m3:
      return 3;
    case Number::e5m2:
      return 2;
    case Number::s8:
    case Number::u8:
      break;
  }
  return 0;
}

namespace {

// Calls visit(decode) with the function that decodes the bits of a format.
template <class Visit>
auto with_decoder(Number format, const Visit& visit) {
  switch (format) {
    case Number::f16:
      return visit([](std::uint32_t x) { return parts_of<5, 10, 15, true, 0x7c00>(x & 0xffff); });
    case Number::bf16:
      return visit([](std::uint32_t x) { return parts_of<8, 7, 127, true, 0x7f80>(x & 0xffff); });
    case Number::e4m3:
      return visit([](std::uint32_t x) { return parts_of<4, 3, 7, false, 0x7f>(x & 0xff); });
    case Number::e5m2:
      return visit([](std::uint32_t x) { return parts_of<5, 2, 15, true, 0x7c>(x & 0xff); });
    case Number::s8:
      return visit([](std::uint32_t x) { return Parts{static_cast<std::int8_t>(x), 0}; });
    case Number::u8:
      break;
  }
  return visit([](std::uint32_t x) { return Parts{static_cast<std::uint8_t>(x), 0}; });
}

}  // namespace

Parts take_apart(Number format, std::uint32_t bits) {
  return with_decoder(format, [bits](const auto& decode) { return decode(bits); });
}

void take_apart(Number format, const void* numbers, int count, std::int32_t* significands,
                std::int32_t* exponents, int stride) {
  with_decoder(format, [=](const auto& decode) {
    const int bytes = number_bytes(format);
    for (int i = 0; i < count; ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, static_cast<const std::uint8_t*>(numbers) + i * bytes,
                  static_cast<std::size_t>(bytes));
      const Parts parts = decode(bits);
      significands[i * stride] = parts.significand;
      exponents[i * stride] = parts.exponent;
    }
  });
}

Accumulation mma_sync_rule(Number a, int arch) {
  const bool fp8 = a == Number::e4m3 || a == Number::e5m2;
  // sm_90 computes FP8 mma.sync in FP16 (ptx/mma.cc).
  if (arch >= 90) return {16, 25, 23};
  if (fp8) return {16, 13, 13};
  return {8, 24, 23};
}

Accumulation wgmma_rule(Number a) {
  const bool fp8 = a == Number::e4m3 || a == Number::e5m2;
  return fp8 ? Accumulation{32, 13, 13} : Accumulation{16, 25, 23};
}

Accumulation wgmma_half_rule(Number a) {
  Accumulation rule = wgmma_rule(a);
  rule.result_bits = 23;
  return rule;
}

namespace {

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
// Eight columns are one vector with AVX2.
#define OCTAVO_VECTOR_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define OCTAVO_VECTOR_CLONES
#endif

using Eight = std::int32_t[kTileColumns];

// Sums of terms below this may leave the normal range, where truncation behaves differently.
constexpr std::int32_t kSmallestExponent = -126 + 32;

// One group of products plus the accumulator, for one row and its eight columns, without branches
// so that it vectorises. Returns false, and does nothing, if a column has an infinity, a NaN or a
// result below the normal range.
OCTAVO_VECTOR_CLONES
bool add_group_fast(const std::int32_t* a_significand, const std::int32_t* a_exponent,
                    const std::int32_t* b_significand, const std::int32_t* b_exponent, int terms,
                    int widen, int fraction_bits, int result_bits, float* d) {
  Eight start, start_exponent, largest, unusual = {};
  for (int c = 0; c < kTileColumns; ++c) {
    const auto bits = std::bit_cast<std::int32_t>(d[c]);
    const std::int32_t exponent = bits >> 23 & 0xff, normal = exponent != 0;
    const std::int32_t magnitude = (bits & 0x7fffff) | normal << 23;
    const std::int32_t sign = bits >> 31, zero = -(magnitude == 0);
    start[c] = (magnitude ^ sign) - sign;
    start_exponent[c] = ((exponent + 1 - normal - 127) & ~zero) | (Parts::kZero & zero);
    unusual[c] |= exponent == 0xff;
    largest[c] = start_exponent[c];
  }
  for (int i = 0; i < terms; ++i)
    for (int c = 0; c < kTileColumns; ++c) {
      const std::int32_t e = a_exponent[i] + b_exponent[i * kTileColumns + c];
      largest[c] = largest[c] < e ? e : largest[c];
    }
  double sums[kTileColumns];
  for (int c = 0; c < kTileColumns; ++c) {
    unusual[c] |= (largest[c] >= Parts::kSpecial / 2) |
                  ((largest[c] > Parts::kZero / 2) & (largest[c] < kSmallestExponent));
    const std::int32_t sign = start[c] >> 31;
    const auto magnitude = static_cast<std::uint32_t>((start[c] ^ sign) - sign);
    // From 23 fraction bits to the rule's, which has at most four more.
    const std::int32_t shift = largest[c] - start_exponent[c] + 27 - fraction_bits;
    const std::uint32_t cut = (magnitude << 4) >> (shift < 31 ? shift : 31);
    sums[c] = (static_cast<std::int32_t>(cut) ^ sign) - sign;
  }
  // Eight terms fit in 32 bits; more are added up in doubles, which are exact too.
  for (int first = 0; first < terms; first += 8) {
    Eight part = {};
    const int last = first + 8 < terms ? first + 8 : terms;
    for (int i = first; i < last; ++i)
      for (int c = 0; c < kTileColumns; ++c) {
        const std::int32_t product = a_significand[i] * b_significand[i * kTileColumns + c];
        const std::int32_t sign = product >> 31;
        const auto magnitude = static_cast<std::uint32_t>((product ^ sign) - sign);
        const std::int32_t away = largest[c] - (a_exponent[i] + b_exponent[i * kTileColumns + c]);
        const std::uint32_t cut = (magnitude << widen) >> (away < 31 ? away : 31);
        part[c] += (static_cast<std::int32_t>(cut) ^ sign) - sign;
      }
    for (int c = 0; c < kTileColumns; ++c) sums[c] += part[c];
  }
  float result[kTileColumns];
  const std::uint64_t keep = ~((std::uint64_t{1} << (52 - result_bits)) - 1);
  for (int c = 0; c < kTileColumns; ++c) {
    const std::int32_t some = -(largest[c] > Parts::kZero / 2);
    const std::int32_t exponent = (largest[c] - fraction_bits) & some;
    const auto power = std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
    result[c] = static_cast<float>(
        std::bit_cast<double>(std::bit_cast<std::uint64_t>(sums[c] * power) & keep));
  }
  std::int32_t any = 0;
  for (int c = 0; c < kTileColumns; ++c) any |= unusual[c];
  if (any != 0) return false;
  for (int c = 0; c < kTileColumns; ++c) d[c] = result[c];
  return true;
}

// The general case, column by column.
float add_group(const TileA& a, const TileB& b, int at, int b_at, int terms, int widen,
                const Accumulation& rule, float c) {
  const Parts accumulator = parts_of_float(c);
  std::int32_t largest = accumulator.exponent;
  for (int i = 0; i < terms; ++i)
    largest = std::max(largest, a.exponent[at + i] + b.exponent[b_at + i * kTileColumns]);
  if (largest <= Parts::kZero / 2) return c;  // nothing but zeros
  if (largest >= Parts::kSpecial / 2) return special_sum(a, b, at, b_at, terms, c);
  std::int64_t sum = 0;
  for (int i = 0; i < terms; ++i) {
    const int in_b = b_at + i * kTileColumns;
    const auto product = static_cast<std::int64_t>(a.significand[at + i]) * b.significand[in_b];
    // Not a shift: the product may be negative.
    sum += aligned(product * (std::int64_t{1} << widen),
                   largest - a.exponent[at + i] - b.exponent[in_b]);
  }
  const int shift = largest - accumulator.exponent + 23 - rule.fraction_bits;
  const auto start = static_cast<std::int64_t>(accumulator.significand);
  sum += shift < 0 ? start * (std::int64_t{1} << -shift) : aligned(start, shift);
  return cut_to_float(sum, largest, rule.fraction_bits, rule.result_bits);
}

}  // namespace

void multiply(const TileShape& shape, const TileA& a, const TileB& b, const Accumulation& rule,
              float* d) {
  const int widen = rule.fraction_bits - fraction_bits(shape.a) - fraction_bits(shape.b);
  for (int row = 0; row < shape.rows; ++row)
    for (int first = 0; first < shape.k; first += rule.group) {
      const int at = row * shape.k + first, b_at = first * kTileColumns;
      const int terms = std::min(rule.group, shape.k - first);
      float* const out = d + row * kTileColumns;
      if (add_group_fast(a.significand + at, a.exponent + at, b.significand + b_at,
                         b.exponent + b_at, terms, widen, rule.fraction_bits, rule.result_bits,
                         out))
        continue;
      for (int c = 0; c < kTileColumns; ++c)
        out[c] = add_group(a, b, at, b_at + c, terms, widen, rule, out[c]);
    }
}

OCTAVO_VECTOR_CLONES
void multiply(const TileShape& shape, const TileA& a, const TileB& b, std::uint32_t* d) {
  for (int row = 0; row < shape.rows; ++row)
    for (int i = 0; i < shape.k; ++i)
      for (int c = 0; c < kTileColumns; ++c)
        d[row * kTileColumns + c] += static_cast<std::uint32_t>(
            a.significand[row * shape.k + i] * b.significand[i * kTileColumns + c]);
}

}  // namespace octavo::emulator
