// SPDX-License-Identifier: Apache-2.0
// The random numbers from which a case is built.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "numeric/random.h"

namespace octavo::evidence {

// The random numbers of one case.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : seed_(seed) {}
  // Uniform in [low, high].
  std::int64_t between(std::int64_t low, std::int64_t high) {
    const auto n = static_cast<std::uint64_t>(high - low + 1);
    return low + static_cast<std::int64_t>(random_below(seed_, kStream, index_++, n));
  }
  bool one_in(std::int64_t n) { return between(1, n) == 1; }
  template <class T, std::size_t n>
  T of(const std::array<T, n>& values) {
    return values[static_cast<std::size_t>(between(0, static_cast<std::int64_t>(n) - 1))];
  }

 private:
  // Far from the streams of Q, K and V (0, 1, 2), so that sizes and values are independent.
  static constexpr std::uint64_t kStream = 1000;
  std::uint64_t seed_;
  std::uint64_t index_ = 0;
};

}  // namespace octavo::evidence
