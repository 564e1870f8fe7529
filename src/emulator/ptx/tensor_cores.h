// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the tensor cores, bit-exact.
//
// Floating point: products are exact. The terms of a group and the accumulator are aligned to the
// largest exponent among them and truncated toward zero to a fixed number of fraction bits; their
// exact sum is truncated to the accumulator's precision. A long product is a chain of groups.
// Integers: exact, modulo 2^32.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace octavo::emulator {

// The one NaN that arithmetic produces.
inline float canonical(float x) { return std::isnan(x) ? std::bit_cast<float>(0x7fffffffu) : x; }

enum class Number : std::uint8_t { f16, bf16, e4m3, e5m2, s8, u8 };
constexpr int number_bytes(Number n) { return n <= Number::bf16 ? 2 : 1; }
constexpr const char* name(Number n) {
  constexpr const char* kNames[] = {"f16", "bf16", "e4m3", "e5m2", "s8", "u8"};
  return kNames[static_cast<int>(n)];
}

struct Accumulation {
  int group = 16;          // products that are summed at once
  int fraction_bits = 25;  // bits kept of a term, below the largest exponent
  int result_bits = 23;    // fraction bits kept of the sum
};
// mma.sync on a chip. The rule for sm_90 was recorded; those for sm_80 and sm_89 are from the
// literature.
Accumulation mma_sync_rule(Number a, int arch);
// wgmma on sm_90, recorded.
Accumulation wgmma_rule(Number a);
// The same with FP16 accumulators, to which the sum is rounded, not truncated.
Accumulation wgmma_half_rule(Number a);

// A decoded number: significand * 2^(exponent - fraction bits of its format), not normalised.
struct Parts {
  std::int32_t significand = 0;
  // kZero for 0; kSpecial for infinities (significand 1 or -1) and NaN (0). They are far apart, so
  // the sum of two exponents tells which kinds took part.
  std::int32_t exponent = 0;
  static constexpr std::int32_t kZero = -4096, kSpecial = 100'000;
};
Parts take_apart(Number format, std::uint32_t bits);
// Decodes `count` numbers that lie one after another; the results are `stride` apart.
void take_apart(Number format, const void* numbers, int count, std::int32_t* significands,
                std::int32_t* exponents, int stride);
int fraction_bits(Number format);

// One tile of D = A B + C with eight columns; k is a multiple of the rule's group, at most 32.
inline constexpr int kTileColumns = 8, kMostK = 32, kMostRows = 64;
struct TileA {  // row-major
  std::int32_t significand[kMostRows * kMostK];
  std::int32_t exponent[kMostRows * kMostK];
};
struct TileB {  // [k][column]
  std::int32_t significand[kMostK * kTileColumns];
  std::int32_t exponent[kMostK * kTileColumns];
};
struct TileShape {
  int rows = 16, k = 16;
  Number a = Number::f16, b = Number::f16;
};
// d[row * kTileColumns + column], in and out.
void multiply(const TileShape& shape, const TileA& a, const TileB& b, const Accumulation& rule,
              float* d);
void multiply(const TileShape& shape, const TileA& a, const TileB& b, std::uint32_t* d);

}  // namespace octavo::emulator
