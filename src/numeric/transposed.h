// SPDX-License-Identifier: Apache-2.0
// Offsets of keys in a channel of a transposed V (config/v_layout.h defines the order).
#pragma once

#include <cstdint>
#include <optional>

#include "config/v_layout.h"
#include "octavo/octavo.hpp"

namespace octavo {

// The inverse of key_of_byte.
constexpr std::int64_t place_of_key(std::int64_t key) {
  const std::int64_t in_group = key % kKeyGroup;
  return key - in_group + in_group % 8 / 2 * 4 + in_group % 2 + in_group / 8 * 2;
}

constexpr bool inverts_key_of_byte() {
  for (int byte = 0; byte < kKeyGroup; ++byte)
    if (place_of_key(key_of_byte(byte / 4, byte % 4)) != byte) return false;
  return true;
}
static_assert(inverts_key_of_byte(), "a key is found where the kernels look for it");

// The bits that the transposed layout flips.
constexpr std::uint8_t flipped_bits(DType dtype) {
  return dtype == DType::int8 ? static_cast<std::uint8_t>(kZeroByte) : std::uint8_t{0};
}

// transposed_columns() and transposed_begin(), or nothing if an argument is negative or the result
// overflows.
std::optional<std::int64_t> checked_transposed_columns(std::int64_t keys, std::int64_t sequences);
std::optional<std::int64_t> checked_transposed_begin(std::int64_t begin, std::int64_t number);

// The shape of a quantized tensor in a layout.
inline std::array<std::int64_t, 4> code_shape(const std::array<std::int64_t, 4>& shape,
                                              VLayout layout) {
  if (layout == VLayout::rows) return shape;
  return {shape[0], shape[1], shape[3], transposed_columns(shape[2])};
}

}  // namespace octavo
