// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4): names cache entries by their content and finds damaged ones.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace octavo {

class Sha256 {
 public:
  using Digest = std::array<std::uint8_t, 32>;

  Sha256& update(std::span<const std::byte> bytes);
  Sha256& update(std::string_view text) { return update(std::as_bytes(std::span(text))); }
  // Adds the length before the text, so that adjacent fields are not ambiguous.
  Sha256& field(std::string_view text);
  Digest finish();
  std::string finish_hex();

 private:
  void block(const std::uint8_t* data);

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> buffer_{};
  std::size_t buffered_ = 0;
  std::uint64_t length_ = 0;
};

std::string sha256_hex(std::span<const std::byte> bytes);
std::string sha256_hex(std::string_view text);

}  // namespace octavo
