// SPDX-License-Identifier: Apache-2.0
// A second implementation of the number formats, only from their definitions: decodes with ldexp,
// and encodes by searching the sorted values. It shares no function with the library, so that their
// agreement is evidence.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace second {

struct Format {
  std::string name;
  int exponent_bits = 0;  // 0: integers
  int mantissa_bits = 0;
  int bias = 0;
  int zero_code = 0;       // of integers
  bool saturates = false;  // else overflow gives infinity
  std::uint32_t max_quantized = 0;
  std::vector<double> values{};  // of encodings 0 to max_quantized + 1, ascending

  int bits() const { return exponent_bits == 0 ? 8 : 1 + exponent_bits + mantissa_bits; }
  std::uint32_t sign_bit() const { return exponent_bits == 0 ? 0 : 1u << (bits() - 1); }
};

// The value of an encoding without its sign; encodings above the largest continue the pattern.
inline double magnitude_value(const Format& format, std::uint32_t code) {
  if (format.exponent_bits == 0) return code;
  const auto exponent = static_cast<int>(code >> format.mantissa_bits);
  const auto mantissa = static_cast<double>(code & ((1u << format.mantissa_bits) - 1));
  const double one = std::ldexp(1.0, format.mantissa_bits);
  return exponent == 0 ? std::ldexp(mantissa, 1 - format.bias - format.mantissa_bits)
                       : std::ldexp(one + mantissa, exponent - format.bias - format.mantissa_bits);
}

inline Format with_values(Format format) {
  for (std::uint32_t code = 0; code <= format.max_quantized + 1; ++code)
    format.values.push_back(magnitude_value(format, code));
  return format;
}

inline const Format kF16 = with_values({"f16", 5, 10, 15, 0, false, 0x7BFF});
inline const Format kBf16 = with_values({"bf16", 8, 7, 127, 0, false, 0x7F7F});
inline const Format kE4m3 = with_values({"e4m3", 4, 3, 7, 0, true, 0x7E});
inline const Format kE5m2 = with_values({"e5m2", 5, 2, 15, 0, true, 0x7B});
inline const Format kInt8 = with_values({"int8", 0, 0, 0, 0, true, 127});
inline const Format kSim8 = with_values({"sim8", 0, 0, 0, 128, true, 127});

inline double decode(const Format& format, std::uint32_t code) {
  if (format.exponent_bits == 0) {
    const int number = static_cast<int>(code) - format.zero_code;
    return number >= 128 ? number - 256 : number;
  }
  const std::uint32_t magnitude = code & (format.sign_bit() - 1);
  const double sign = (code & format.sign_bit()) != 0 ? -1.0 : 1.0;
  if (magnitude <= format.max_quantized) return sign * magnitude_value(format, magnitude);
  const std::uint32_t first_mantissa = magnitude & ((1u << format.mantissa_bits) - 1);
  const bool infinite = format.name != "e4m3" && first_mantissa == 0;
  return std::copysign(
      infinite ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN(),
      sign);
}

// The nearest value, ties to the even encoding.
inline std::uint32_t nearest(const Format& format, double magnitude) {
  const auto above = std::upper_bound(format.values.begin(), format.values.end(), magnitude);
  if (above == format.values.end())
    return format.saturates ? format.max_quantized : format.max_quantized + 1;
  const auto high = static_cast<std::uint32_t>(above - format.values.begin());
  const std::uint32_t low = high - 1;
  const double halfway = (format.values[low] + format.values[high]) / 2;
  const bool up = magnitude > halfway || (magnitude == halfway && low % 2 == 1);
  const std::uint32_t code = up ? high : low;
  return format.saturates && code > format.max_quantized ? format.max_quantized : code;
}

inline std::uint32_t encode(const Format& format, float x) {
  const bool negative = std::signbit(x);
  if (format.exponent_bits == 0) {
    const int number = std::isnan(x) ? 0 : static_cast<int>(nearest(format, std::fabs(x)));
    return static_cast<std::uint32_t>(format.zero_code + (negative ? -number : number)) & 0xFF;
  }
  const std::uint32_t sign = negative ? format.sign_bit() : 0;
  if (std::isnan(x)) return sign | (format.sign_bit() - 1);  // any quiet NaN: see same_code
  return sign | nearest(format, std::fabs(x));
}

// The payload of a 16-bit NaN is arbitrary; its sign and quietness are not.
inline bool same_code(const Format& format, std::uint32_t expected, std::uint32_t got) {
  if (expected == got) return true;
  const std::uint32_t quiet = format.bits() == 16 ? 1u << (format.mantissa_bits - 1) : 0;
  return quiet != 0 && std::isnan(decode(format, expected)) && std::isnan(decode(format, got)) &&
         (got & quiet) != 0 && (expected & format.sign_bit()) == (got & format.sign_bit());
}

struct Mismatches {
  std::int64_t count = 0;
  float first_input = 0;
  std::uint32_t first_expected = 0;
  std::uint32_t first_got = 0;
};

using Encoder = std::function<std::uint32_t(float)>;

inline Mismatches compare(const Format& format, const Encoder& encoder,
                          std::span<const float> inputs) {
  Mismatches found;
  for (const float x : inputs) {
    const std::uint32_t expected = encode(format, x);
    const std::uint32_t got = encoder(x);
    if (same_code(format, expected, got)) continue;
    if (found.count++ == 0) {
      found.first_input = x;
      found.first_expected = expected;
      found.first_got = got;
    }
  }
  return found;
}

// Inputs where rounding can go wrong: every value of the format, every midpoint between neighbours,
// the floats on either side of both, the overflow threshold and beyond, both signs.
inline std::vector<float> boundaries(const Format& format) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> inputs;
  const auto around = [&inputs](float x) {
    for (const float y : {x, std::nextafter(x, kInfinity), std::nextafter(x, -kInfinity)}) {
      inputs.push_back(y);
      inputs.push_back(-y);
    }
  };
  for (std::size_t code = 0; code <= format.max_quantized; ++code) {
    around(static_cast<float>(format.values[code]));
    around(static_cast<float>((format.values[code] + format.values[code + 1]) / 2));
  }
  around(static_cast<float>(format.values.back()));
  around(std::numeric_limits<float>::max());
  around(std::numeric_limits<float>::min());
  around(std::numeric_limits<float>::denorm_min());
  for (const float special : {kInfinity, std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::signaling_NaN()}) {
    inputs.push_back(special);
    inputs.push_back(-special);
  }
  return inputs;
}

}  // namespace second
