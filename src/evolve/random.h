// SPDX-License-Identifier: Apache-2.0
// Reproducible random choices: every choice of a run follows from its seed and from what it is for,
// so that a resumed run makes the same ones without a stored position.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace octavo::evolve {

// SplitMix64.
constexpr std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr std::uint64_t seed_for(std::uint64_t seed, std::string_view purpose,
                                 std::uint64_t number = 0) {
  std::uint64_t hash = mixed(seed);
  for (const char c : purpose) hash = mixed(hash ^ static_cast<unsigned char>(c));
  return mixed(hash ^ number);
}

// Not a standard distribution: those differ between libraries.
class Random {
 public:
  explicit constexpr Random(std::uint64_t seed) : state_(mixed(seed)) {}
  constexpr std::uint64_t next() { return mixed(state_++); }
  constexpr std::size_t below(std::size_t n) { return static_cast<std::size_t>(next() % n); }
  constexpr double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  template <class T>
  const T& of(const std::vector<T>& list) {
    return list[below(list.size())];
  }

 private:
  std::uint64_t state_;
};

}  // namespace octavo::evolve
