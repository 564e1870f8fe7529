// SPDX-License-Identifier: Apache-2.0
// A seeded order for everything that the ISA leaves unordered.
#pragma once

#include <cstdint>
#include <optional>

namespace octavo::emulator {

class SeededOrder {
 public:
  explicit SeededOrder(std::optional<std::uint64_t> seed) : seeded_(seed.has_value()) {
    state_ = seed.value_or(0) * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du;
    // Some schedules complete copies early, some late, some only when they are waited for.
    eagerness_ = static_cast<std::uint32_t>(next() % 4);
  }
  bool seeded() const { return seeded_; }

  // Uniform in [0, n).
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(next() >> 33) % n; }
  // Whether an operation in flight completes now.
  bool arrives() {
    constexpr std::uint32_t kOneIn[] = {0, 64, 16, 2};
    return seeded_ && eagerness_ != 0 && below(kOneIn[eagerness_]) == 0;
  }

 private:
  std::uint64_t next() {  // xorshift64*
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1du;
  }

  bool seeded_ = false;
  std::uint64_t state_ = 1;
  std::uint32_t eagerness_ = 0;
};

}  // namespace octavo::emulator
