// SPDX-License-Identifier: Apache-2.0
// Rows of an int4 KV cache: two values a byte, with a scale and a zero for each group of channels.
//
// The byte order is what the decode kernel's products want (device/decode/int4_products.cuh): eight
// channels are a little-endian word whose halves of bytes hold channels 0, 2, 4, 6, 1, 3, 5 and 7,
// from the lowest on. The kernel that appends rows has the same roundings (device/cache/int4.cuh).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "numeric/formats.h"
#include "octavo/octavo.hpp"

namespace octavo {

inline constexpr float kLargestF16 = 65504;
inline constexpr float kInt4Steps = 15;

// The place of a channel among the halves of bytes of a row.
constexpr std::int64_t int4_place(std::int64_t channel) {
  return channel / 8 * 8 + channel % 2 * 4 + channel % 8 / 2;
}

// The scales and zeros of a paged cache: (pages, heads, 2, groups, page_size).
struct Int4Groups {
  std::uint16_t* data = nullptr;  // f16
  std::int64_t heads = 0, page_size = 0, head_dim = 0, channels = 0;

  std::int64_t groups() const { return head_dim / channels; }
  std::int64_t of_page() const { return heads * 2 * groups() * page_size; }
  std::int64_t scale_at(std::int64_t page, std::int64_t head, std::int64_t group,
                        std::int64_t row) const {
    return page * of_page() + (head * 2 * groups() + group) * page_size + row;
  }
  std::int64_t zero_at(std::int64_t page, std::int64_t head, std::int64_t group,
                       std::int64_t row) const {
    return scale_at(page, head, group, row) + groups() * page_size;
  }
};

// The scale and the zero of a group of values: the smallest and the largest become 0 and 15. Values
// that are not finite do not count.
struct Int4Group {
  std::uint16_t scale = 0, zero = 0;

  Int4Group(const float* x, std::int64_t channels) {
    float least = kLargestF16, most = -kLargestF16;
    for (std::int64_t c = 0; c < channels; ++c) {
      if (!std::isfinite(x[c])) continue;
      least = std::min(least, x[c]);
      most = std::max(most, x[c]);
    }
    if (least > most) least = most = 0;                         // no value is finite
    zero = f16_from_f32(std::max(least, -kLargestF16) + 0.0f);  // -0 becomes 0
    const float range = std::min(most, kLargestF16) - f32_from_f16(zero);
    scale = f16_from_f32(std::max(range, 0.0f) / kInt4Steps);
  }

  std::uint32_t encode(float x) const {
    const float step = f32_from_f16(scale);
    if (step == 0 || std::isnan(x)) return 0;
    const float steps = (x - f32_from_f16(zero)) * (1 / step);
    // A float from 2^23 on has no fraction bits: adding 1.5 * 2^23 rounds to nearest, ties to even.
    return std::bit_cast<std::uint32_t>(std::clamp(steps, 0.0f, kInt4Steps) + 12582912.0f) & 15;
  }
};

// Quantizes a row to head_dim / 2 bytes.
inline void store_int4_row(const float* x, const Int4Groups& to, std::int64_t page,
                           std::int64_t head, std::int64_t row, std::uint8_t* bytes) {
  std::fill_n(bytes, to.head_dim / 2, std::uint8_t{0});
  for (std::int64_t g = 0; g < to.groups(); ++g) {
    const Int4Group group(x + g * to.channels, to.channels);
    to.data[to.scale_at(page, head, g, row)] = group.scale;
    to.data[to.zero_at(page, head, g, row)] = group.zero;
    for (std::int64_t c = g * to.channels; c < (g + 1) * to.channels; ++c) {
      const std::int64_t place = int4_place(c);
      bytes[place / 2] |= static_cast<std::uint8_t>(group.encode(x[c]) << place % 2 * 4);
    }
  }
}

inline void load_int4_row(const std::uint8_t* bytes, const Int4Groups& from, std::int64_t page,
                          std::int64_t head, std::int64_t row, float* x) {
  for (std::int64_t c = 0; c < from.head_dim; ++c) {
    const std::int64_t place = int4_place(c), group = c / from.channels;
    const std::uint32_t n = bytes[place / 2] >> place % 2 * 4 & 15u;
    x[c] = f32_from_f16(from.data[from.scale_at(page, head, group, row)]) * static_cast<float>(n) +
           f32_from_f16(from.data[from.zero_at(page, head, group, row)]);
  }
}

}  // namespace octavo
