// Scales: from a range to a step, and where a row's scale stands.
//
// A code stands for code * step. step = scale, except for sim8, whose scale is the amax itself:
// step = scale / 127. Encoding multiplies by 1/step, or, where the scale was found and not given,
// by a little more in FP8 (one correctly rounded division, then one correctly rounded product), so
// that CPU and GPU agree bit for bit.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "octavo/octavo.hpp"

namespace octavo {

// amax = 0 gives 1.0. The step of the scale returned never falls below the smallest normal
// float, so 1/step is finite.
float scale_from_amax(DType format, float amax);
// The same with amax at this code instead of the format's largest.
float scale_from_amax(DType format, float amax, float largest_code);

// The code that amax becomes in Q and K: in FP8 the largest with head_dim * code^2 <= 65000, so
// that q . k fits FP16; else the format's largest.
float largest_score_code(DType format, std::int64_t head_dim);

inline float step_of(DType format, float scale) {
  return format == DType::sim8 ? scale / 127.0f : scale;
}

// What values are multiplied by before they are rounded to codes of a step that was found for them:
// 1/step, widened as config/widening.h says.
float inverse_of_found(DType format, float step);

// Scales of one (batch, head); 0 for a shape or a block_rows that no tensor has.
std::int64_t scales_per_head(const std::array<std::int64_t, 4>& shape, Granularity granularity,
                             std::int64_t block_rows);

// scale_count(), or nothing where a size is negative or the count is too large for the type.
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
