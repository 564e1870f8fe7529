// SPDX-License-Identifier: Apache-2.0
// Shared by the fuzz targets: reading choices from bytes, and failing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace octavo::fuzz {

// Ends the program, as a sanitizer does, so that the fuzzer keeps the input.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: does not hold: %s\n", what);
  std::abort();
}

// An error is one sentence on one line; bytes of a hostile file must not reach a terminal
// unescaped.
inline void require_sentence(std::string_view message) {
  const auto fail = [message](const char* what) {
    std::fprintf(stderr, "message: [%.*s]\n", static_cast<int>(message.size()), message.data());
    require(false, what);
  };
  if (message.empty()) fail("a failure has a message");
  if (message.back() != '.') fail("a message ends with a full stop");
  for (const char c : message)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) fail("a message has no control bytes");
}

// Choices read from the front of the input; zeros after its end.
class Reader {
 public:
  explicit Reader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  std::uint8_t byte() {
    if (next_ >= bytes_.size()) return 0;
    return bytes_[next_++];
  }
  // 0 to n-1, n at most 256.
  int below(int n) { return byte() % n; }
  bool one_in(int n) { return below(n) == n - 1; }  // false after the end of the input
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + byte() % (high - low + 1);
  }
  std::uint64_t word() {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return value;
  }
  template <class T, std::size_t n>
  T pick(const T (&choices)[n]) {
    return choices[byte() % n];
  }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t next_ = 0;
};

}  // namespace octavo::fuzz
