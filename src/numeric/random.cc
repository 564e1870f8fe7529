// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 and Box-Muller, bit for bit as random.h defines them.
#include "numeric/random.h"

#include <bit>
#include <cmath>

namespace octavo {
namespace {

// log((2 a + 1) / 2^33).
double log_uniform(std::uint32_t a) {
  const double n = 2.0 * a + 1.0;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(n);
  int exponent = static_cast<int>(bits >> 52) - 1023 - 33;
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFF) | (std::uint64_t{1023} << 52));
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double z = (m - 1.0) / (m + 1.0);
  const double t = z * z;
  double p = 1.0 / 19.0;
  p = p * t + 1.0 / 17.0;
  p = p * t + 1.0 / 15.0;
  p = p * t + 1.0 / 13.0;
  p = p * t + 1.0 / 11.0;
  p = p * t + 1.0 / 9.0;
  p = p * t + 1.0 / 7.0;
  p = p * t + 1.0 / 5.0;
  p = p * t + 1.0 / 3.0;
  p = p * t + 1.0;
  return exponent * 0.6931471805599453 + (z + z) * p;
}

struct CosSin {
  double cos, sin;
};

// Cosine and sine of a uniform angle: the top two bits are quarter turns, the rest is in
// (-pi/4, pi/4).
CosSin uniform_angle(std::uint32_t b) {
  const double f = ((b & 0x3FFFFFFF) + 0.5) * 0x1p-30 - 0.5;
  const double x = f * 1.5707963267948966;
  const double t = x * x;
  double s = -1.0 / 1307674368000.0;
  s = s * t + 1.0 / 6227020800.0;
  s = s * t + -1.0 / 39916800.0;
  s = s * t + 1.0 / 362880.0;
  s = s * t + -1.0 / 5040.0;
  s = s * t + 1.0 / 120.0;
  s = s * t + -1.0 / 6.0;
  s = s * t + 1.0;
  s = x * s;
  double c = 1.0 / 20922789888000.0;
  c = c * t + -1.0 / 87178291200.0;
  c = c * t + 1.0 / 479001600.0;
  c = c * t + -1.0 / 3628800.0;
  c = c * t + 1.0 / 40320.0;
  c = c * t + -1.0 / 720.0;
  c = c * t + 1.0 / 24.0;
  c = c * t + -1.0 / 2.0;
  c = c * t + 1.0;
  switch (b >> 30) {
    case 0:
      return {c, s};
    case 1:
      return {-s, c};
    case 2:
      return {-c, -s};
    default:
      return {s, -c};
  }
}

std::array<float, 4> normal_block(std::uint64_t seed, std::uint64_t stream, std::uint64_t block) {
  const std::array<std::uint32_t, 4> words = philox4x32(seed, stream, block);
  std::array<float, 4> values{};
  for (int pair = 0; pair < 2; ++pair) {
    const double radius = std::sqrt(-2.0 * log_uniform(words[2 * pair]));
    const CosSin angle = uniform_angle(words[2 * pair + 1]);
    values[2 * pair] = static_cast<float>(radius * angle.cos);
    values[2 * pair + 1] = static_cast<float>(radius * angle.sin);
  }
  return values;
}

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::uint64_t seed, std::uint64_t stream,
                                        std::uint64_t counter) {
  std::array<std::uint32_t, 4> c = {
      static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32),
      static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)};
  std::uint32_t key0 = static_cast<std::uint32_t>(seed);
  std::uint32_t key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * c[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<std::uint32_t>(product1 >> 32) ^ c[1] ^ key0,
         static_cast<std::uint32_t>(product1),
         static_cast<std::uint32_t>(product0 >> 32) ^ c[3] ^ key1,
         static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return c;
}

float random_normal_value(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return normal_block(seed, stream, index / 4)[index % 4];
}

void fill_normal(float* out, std::int64_t count, std::uint64_t seed, std::uint64_t stream,
                 std::uint64_t first_index) {
  std::int64_t done = 0;
  while (done < count) {
    const std::uint64_t index = first_index + static_cast<std::uint64_t>(done);
    const std::array<float, 4> values = normal_block(seed, stream, index / 4);
    for (std::uint64_t lane = index % 4; lane < 4 && done < count; ++lane)
      out[done++] = values[lane];
  }
}

std::uint64_t random_below(std::uint64_t seed, std::uint64_t stream, std::uint64_t index,
                           std::uint64_t n) {
  const std::array<std::uint32_t, 4> words = philox4x32(seed, stream, index);
  return ((std::uint64_t{words[1]} << 32) | words[0]) % n;
}

}  // namespace octavo
