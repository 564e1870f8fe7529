// SPDX-License-Identifier: Apache-2.0
// Scales: counts, indices, and the scale of a range.
#include "numeric/scale.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "config/widening.h"
#include "numeric/formats.h"

namespace octavo {

float scale_from_amax(DType format, float amax) {
  return scale_from_amax(format, amax, largest(format));
}

float scale_from_amax(DType format, float amax, float max_quantized) {
  if (amax == 0.0f) return 1.0f;
  constexpr float kSmallestStep = std::numeric_limits<float>::min();
  if (format == DType::sim8) return std::max(amax, 127.0f * kSmallestStep);
  return std::max(amax / max_quantized, kSmallestStep);
}

float inverse_of_found(DType format, float step) {
  const Element to = format == DType::e4m3   ? Element::e4m3
                     : format == DType::e5m2 ? Element::e5m2
                                             : Element::int8;
  return widening(to) / step;
}

float max_quantized_qk(DType format, std::int64_t head_dim) {
  if (format != DType::e4m3 && format != DType::e5m2) return largest(format);
  constexpr double kLargestScore = 65000;  // below 65504, the largest FP16 value
  const auto limit = static_cast<float>(
      std::sqrt(kLargestScore / static_cast<double>(std::max<std::int64_t>(head_dim, 1))));
  // Rounded down to the format's three or two mantissa bits.
  const std::uint32_t mask = ~std::uint32_t{0} << (format == DType::e4m3 ? 20 : 21);
  return std::min(std::bit_cast<float>(std::bit_cast<std::uint32_t>(limit) & mask),
                  largest(format));
}

std::int64_t scales_per_head(const std::array<std::int64_t, 4>& shape, Granularity granularity,
                             std::int64_t block_rows) {
  switch (granularity) {
    case Granularity::tensor:
    case Granularity::head:
      return 1;
    case Granularity::block:
      return block_rows <= 0 || shape[2] <= 0 ? 0 : (shape[2] - 1) / block_rows + 1;
    case Granularity::row:
      return std::max<std::int64_t>(shape[2], 0);
    case Granularity::channel:
      return std::max<std::int64_t>(shape[3], 0);
  }
  return 0;
}

std::optional<std::int64_t> checked_scale_count(const std::array<std::int64_t, 4>& shape,
                                                Granularity granularity, std::int64_t block_rows) {
  for (const std::int64_t size : shape)
    if (size < 0) return std::nullopt;
  if (granularity == Granularity::tensor) return 1;
  std::int64_t count = scales_per_head(shape, granularity, block_rows);
  if (shape[0] == 0 || shape[1] == 0) return 0;
  if (__builtin_mul_overflow(count, shape[0], &count) ||
      __builtin_mul_overflow(count, shape[1], &count))
    return std::nullopt;
  return count;
}

// For an invalid shape the result is 0: the caller allocates an empty array, and the function that
// checks the shape reports the error.
std::int64_t scale_count(const std::array<std::int64_t, 4>& shape, Granularity granularity,
                         std::int64_t block_rows) {
  return checked_scale_count(shape, granularity, block_rows).value_or(0);
}

ScaleIndex scale_index(const Scales& scales, const std::array<std::int64_t, 4>& shape) {
  ScaleIndex index{scales.granularity, scales.block_rows, {}};
  if (scales.stride) {
    index.stride = *scales.stride;
  } else {
    const std::int64_t per_head = scales_per_head(shape, scales.granularity, scales.block_rows);
    index.stride = {shape[1] * per_head, per_head, 1};
  }
  return index;
}

}  // namespace octavo
