// SPDX-License-Identifier: Apache-2.0
// Emulation of device/ptx/math.cuh and f64.cuh: arithmetic of one thread.
#include "device/ptx/math.cuh"

#include <bit>
#include <cmath>
#include <limits>

#include "device/ptx/f64.cuh"
#include "emulator/machine.h"
#include "emulator/ptx/tensor_cores.h"
#include "numeric/formats.h"

namespace octavo::ptx {
namespace {

using emulator::canonical;
using emulator::self;

// .ftz: denormal inputs and results become zero.
float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }
u32 pair(u32 low, u32 high, int bits) { return low | high << bits; }

}  // namespace

double exp_f64(double x) { return std::exp(x); }
double log_f64(double x) { return std::log(x); }
float exp2_approx(float x) {
  self().machine->measures().count("ex2");
  return flushed(std::exp2(flushed(x)));
}
// The chip truncates to FP16: this holds for every recorded value, to the bit.
u32 exp2_approx_f16x2(u32 x) {
  self().machine->measures().count("ex2.f16x2");
  const auto half = [](u32 bits) -> u32 {
    const double y = std::exp2(static_cast<double>(f32_from_f16(static_cast<u16>(bits))));
    constexpr double kBeyondAll = 65536;
    if (std::isnan(y)) return 0x7fff;
    if (y >= kBeyondAll) return 0x7c00;
    const u16 nearest = f16_from_f32(static_cast<float>(y));
    return f32_from_f16(nearest) > y ? nearest - 1u : nearest;
  };
  return pair(half(x & 0xffff), half(x >> 16), 16);
}
float log2_approx(float x) { return std::log2(flushed(x)); }
float reciprocal_approx(float x) { return flushed(1.0f / flushed(x)); }
// Arithmetic always produces the same NaN.
float fused_multiply_add(float a, float b, float c) { return canonical(std::fma(a, b, c)); }
float fma_sat_f32(float a, float b, float c) {
  const float sum = std::fma(a, b, c);
  return sum > 0 ? std::min(sum, 1.0f) : 0.0f;
}
float abs_f32(float x) { return std::fabs(x); }
// std::fmax alone would return a signalling NaN instead of the number.
float max_f32(float a, float b) {
  if (std::isnan(a)) return canonical(b);
  return std::isnan(b) ? a : std::fmax(a, b);
}
float min_f32(float a, float b) {
  if (std::isnan(a)) return canonical(b);
  return std::isnan(b) ? a : std::fmin(a, b);
}

// A NaN becomes the canonical NaN of the format, as in the instruction.
u32 f16x2_from_f32(float low, float high) {
  const auto half = [](float x) -> u32 { return std::isnan(x) ? 0x7fff : f16_from_f32(x); };
  return pair(half(low), half(high), 16);
}
u32 bf16x2_from_f32(float low, float high) {
  const auto half = [](float x) -> u32 { return std::isnan(x) ? 0x7fff : bf16_from_f32(x); };
  return pair(half(low), half(high), 16);
}
u32 e4m3x2_from_f32(float low, float high) {
  const auto byte = [](float x) -> u32 { return std::isnan(x) ? 0x7f : e4m3_from_f32(x); };
  return pair(byte(low), byte(high), 8);
}
u32 f16x2_from_e4m3x2(u32 x) {
  const auto half = [](u32 byte) -> u32 {
    const float y = f32_from_e4m3(static_cast<u8>(byte));
    return std::isnan(y) ? 0x7fff : f16_from_f32(y);
  };
  return pair(half(x & 0xff), half(x >> 8 & 0xff), 16);
}
u32 e5m2x2_from_f32(float low, float high) {
  const auto byte = [](float x) -> u32 { return std::isnan(x) ? 0x7f : e5m2_from_f32(x); };
  return pair(byte(low), byte(high), 8);
}

u32 e4m3x2_from_f16x2(u32 x) {
  const auto byte = [](u32 half) -> u32 {
    const float y = f32_from_f16(static_cast<u16>(half));
    return std::isnan(y) ? 0x7f : e4m3_from_f32(y);
  };
  return pair(byte(x & 0xffff), byte(x >> 16), 8);
}

namespace {

template <class Half>
u32 by_halves(u32 a, u32 b, u32 c, const Half& half) {
  const auto wide = [](u32 bits) { return f32_from_f16(static_cast<u16>(bits & 0xffff)); };
  return pair(half(wide(a), wide(b), wide(c)), half(wide(a >> 16), wide(b >> 16), wide(c >> 16)),
              16);
}
// Rounded to odd, so that rounding again to fewer bits gives the same result as rounding once.
template <class Float, class Bits>
Float to_odd(Float rounded, double missing) {
  const bool odd = (std::bit_cast<Bits>(rounded) & 1) != 0;
  if (missing == 0 || odd || !std::isfinite(rounded)) return rounded;
  constexpr Float kInfinity = std::numeric_limits<Float>::infinity();
  return std::nextafter(rounded, missing > 0 ? kInfinity : -kInfinity);
}
double product_and_sum(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b);  // exact
  const double sum = product + static_cast<double>(c);
  const double of_c = sum - product;
  const double missing = (product - (sum - of_c)) + (static_cast<double>(c) - of_c);
  return to_odd<double, u64>(sum, missing);
}
u32 half_of(double x) {
  const auto rounded = static_cast<float>(x);
  return std::isnan(x)
             ? 0x7fff
             : f16_from_f32(to_odd<float, u32>(rounded, x - static_cast<double>(rounded)));
}

}  // namespace

u32 fma_f16x2(u32 a, u32 b, u32 c) {
  return by_halves(a, b, c,
                   [](float x, float y, float z) { return half_of(product_and_sum(x, y, z)); });
}
u32 fnma_f16x2(u32 a, u32 b, u32 c) { return fma_f16x2(a ^ 0x80008000u, b, c); }
u32 fma_sat_f16x2(u32 a, u32 b, u32 c) {
  return by_halves(a, b, c, [](float x, float y, float z) -> u32 {
    const double sum = product_and_sum(x, y, z);
    return sum > 0 ? half_of(std::min(sum, 1.0)) : 0;
  });
}
u32 max_f16x2(u32 a, u32 b) {
  return by_halves(a, b, 0, [](float x, float y, float) { return half_of(max_f32(x, y)); });
}
bool any_ge_f16x2(u32 a, u32 b) {
  return by_halves(a, b, 0, [](float x, float y, float) -> u32 { return x >= y; }) != 0;
}

u32 sub_f16x2(u32 a, u32 b) {
  // The sum is exact in float, so it is rounded once.
  const auto half = [](u32 x, u32 y) -> u32 {
    const float d = f32_from_f16(static_cast<u16>(x)) - f32_from_f16(static_cast<u16>(y));
    return std::isnan(d) ? 0x7fff : f16_from_f32(d);
  };
  return pair(half(a & 0xffff, b & 0xffff), half(a >> 16, b >> 16), 16);
}

void f32_from_f16x2(float& low, float& high, u32 x) {
  const auto wide = [](u32 half) {
    const float y = f32_from_f16(static_cast<u16>(half));
    return std::isnan(y) ? std::bit_cast<float>(0x7fffffffu) : y;
  };
  low = wide(x & 0xffff);
  high = wide(x >> 16);
}

u32 shift_left(u32 x, u32 by) { return by < 32 ? x << by : 0; }

u32 permute_bytes(u32 a, u32 b, u32 selector) {
  const u64 bytes = static_cast<u64>(b) << 32 | a;
  u32 d = 0;
  for (u32 i = 0; i < 4; ++i)
    d |= static_cast<u32>(bytes >> (selector >> i * 4 & 7) * 8 & 0xff) << i * 8;
  return d;
}
u32 add_bytes(u32 x, u32 c) {
  for (u32 i = 0; i < 4; ++i) c += x >> i * 8 & 0xff;
  return c;
}
float float_of_bits(u32 x) { return std::bit_cast<float>(x); }
u32 bits_of(float x) { return std::bit_cast<u32>(x); }
float float_of_int(i32 x) { return static_cast<float>(x); }

}  // namespace octavo::ptx
