// SPDX-License-Identifier: Apache-2.0
// Scales: computed from a range, and indexed by row.
//
// The dequantized value is the quantized one times step, where step = scale, except for sim8, whose
// scale is the amax itself: step = scale / 127. Encoding multiplies by 1/step, or by a little more
// for FP8 with a computed scale: one correctly rounded division, then one correctly rounded
// product, so that CPU and GPU agree bit for bit.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "octavo/octavo.hpp"

namespace octavo {

// amax = 0 gives 1.0. The step of the returned scale is at least the smallest normal float, so
// 1/step is finite.
float scale_from_amax(DType format, float amax);
// The same, but amax is quantized to `max_quantized` instead of the format's largest.
float scale_from_amax(DType format, float amax, float max_quantized);

// The quantized value of amax in Q and K: for FP8 the largest with head_dim * value^2 <= 65000, so
// that q . k fits FP16; otherwise the format's largest.
float max_quantized_qk(DType format, std::int64_t head_dim);

inline float step_of(DType format, float scale) {
  return format == DType::sim8 ? scale / 127.0f : scale;
}

// The factor for values whose scale the library computed: 1/step, widened as in config/widening.h.
float inverse_of_found(DType format, float step);

// Scales of one (batch, head); 0 for an invalid shape or block_rows.
std::int64_t scales_per_head(const std::array<std::int64_t, 4>& shape, Granularity granularity,
                             std::int64_t block_rows);

// scale_count(), or nothing if a size is negative or the count overflows.
std::optional<std::int64_t> checked_scale_count(const std::array<std::int64_t, 4>& shape,
                                                Granularity granularity, std::int64_t block_rows);

// Scale of element (row, column) of (batch, head): an index into Scales::data.
struct ScaleIndex {
  Granularity granularity = Granularity::head;
  std::int64_t block_rows = 64;
  std::array<std::int64_t, 3> stride{};  // batch, head, index

  std::int64_t at(std::int64_t batch, std::int64_t head, std::int64_t row,
                  std::int64_t column) const {
    const std::int64_t first = batch * stride[0] + head * stride[1];
    switch (granularity) {
      case Granularity::tensor:
        return 0;
      case Granularity::head:
        return first;
      case Granularity::block:
        return first + row / block_rows * stride[2];
      case Granularity::row:
        return first + row * stride[2];
      case Granularity::channel:
        return first + column * stride[2];
    }
    return 0;
  }
};
// Contiguous unless the caller gave strides.
ScaleIndex scale_index(const Scales& scales, const std::array<std::int64_t, 4>& shape);

}  // namespace octavo
