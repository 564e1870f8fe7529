// SPDX-License-Identifier: Apache-2.0
// Standard normal values from a counter: value i of a stream depends only on (seed, stream, i).
//
// Philox4x32-10 gives the bits; Box-Muller in double, with a logarithm and a sine made of IEEE
// +, -, *, / and sqrt only, gives the value, rounded once to float. No library function, no
// contraction: the same bits in C++, on a GPU and in Python. The recipe, all in double:
//
//   words   w0..w3 = philox4x32(seed, stream, i / 4); pair (a, b) = (w0, w1) where i % 4 < 2,
//           else (w2, w3)
//   radius  n = 2 a + 1, a whole number below 2^33; u = n / 2^33, in (0, 1)
//           u = m * 2^e with m in [1, 2); where m > 1.4142135623730951: m = m / 2, e = e + 1
//           z = (m - 1) / (m + 1), t = z * z
//           p = 1/19; for k = 17, 15, ..., 3, 1: p = p * t + 1/k  (1/k: the double nearest)
//           log u = e * 0.6931471805599453 + (z + z) * p
//           r = sqrt(-2 * log u)
//   angle   turn = b >> 30; f = ((b mod 2^30) + 0.5) * 2^-30 - 0.5, in (-0.5, 0.5)
//           x = f * 1.5707963267948966, t = x * x
//           sin x = x * S, S = s15; for k = 13, 11, ..., 3, 1: S = S * t + sk
//           cos x = C, C = c16; for k = 14, 12, ..., 2, 0: C = C * t + ck
//           (sk = (-1)^((k-1)/2) / k!, ck = (-1)^(k/2) / k!, each one division of exact numbers)
//           (c, s) = (C, sin x), turned by `turn` quarters: 1: (-s, c), 2: (-c, -s), 3: (s, -c)
//   value   float(r * c) where i is even, float(r * s) where it is odd
#pragma once

#include <array>
#include <cstdint>

namespace octavo {

// Key: seed, low word first. Counter: the counter's low and high word, then the stream's.
std::array<std::uint32_t, 4> philox4x32(std::uint64_t seed, std::uint64_t stream,
                                        std::uint64_t counter);
float random_normal_value(std::uint64_t seed, std::uint64_t stream, std::uint64_t index);
// Values first_index ... first_index + count - 1, each block of four computed once.
void fill_normal(float* out, std::int64_t count, std::uint64_t seed, std::uint64_t stream,
                 std::uint64_t first_index);
// Uniform in [0, n), for choosing cases; n > 0.
std::uint64_t random_below(std::uint64_t seed, std::uint64_t stream, std::uint64_t index,
                           std::uint64_t n);

}  // namespace octavo
