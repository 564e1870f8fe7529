// SPDX-License-Identifier: Apache-2.0
// Shared by the quantization tests: a tensor with its memory, and a direct recomputation of scales
// and quantized values, element by element from the definitions.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "numeric/second_formats.h"
#include "octavo/evidence.hpp"
#include "octavo/octavo.hpp"

namespace octavo::testing {

using Shape = std::array<std::int64_t, 4>;

inline std::size_t elements(const Shape& shape) {
  return static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]);
}

// f32, contiguous, initially standard normal.
struct Values {
  Shape shape;
  std::vector<float> data;

  explicit Values(const Shape& of_shape, std::uint64_t seed = 42)
      : shape(of_shape), data(elements(of_shape)) {
    const Status status = random_normal(tensor(), seed, 0);
    if (!status.ok()) throw status;
  }
  Tensor tensor() {
    return Tensor::bhsd(data.data(), DType::f32, shape[0], shape[1], shape[2], shape[3]);
  }
};

// The quantized values, scales, mean and statistics of one call.
struct Quantized {
  DType format;
  QuantizeOptions options;
  Shape shape;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
  std::vector<float> mean;
  RangeStats stats;

  Tensor tensor() {
    return Tensor::bhsd(codes.data(), format, shape[0], shape[1], shape[2], shape[3]);
  }
  Scales scales_view() const {
    return {scales.data(), options.granularity, options.block_rows, {}};
  }
};

inline Quantized quantized(Values& x, DType format, const QuantizeOptions& options,
                           std::vector<float> given = {}) {
  Quantized q{format, options, x.shape, {}, std::move(given), {}, {}};
  q.codes.assign(x.data.size(), 0xAA);
  if (!options.scales_given)
    q.scales.assign(
        static_cast<std::size_t>(scale_count(x.shape, options.granularity, options.block_rows)),
        -1.0f);
  q.mean.assign(static_cast<std::size_t>(x.shape[0] * x.shape[1] * x.shape[3]), -1.0f);
  const Status status =
      quantize(x.tensor(), options, q.tensor(), q.scales.data(), q.mean.data(), &q.stats);
  if (!status.ok()) throw status;
  return q;
}

inline const second::Format& definition(DType format) {
  switch (format) {
    case DType::e4m3:
      return second::kE4m3;
    case DType::e5m2:
      return second::kE5m2;
    case DType::int8:
      return second::kInt8;
    default:
      return second::kSim8;
  }
}

// The index of element i's scale, from its four coordinates and the table of octavo.hpp.
inline std::size_t group_of(const Shape& shape, const QuantizeOptions& options, std::size_t i) {
  const auto at = static_cast<std::int64_t>(i);
  const std::int64_t column = at % shape[3];
  const std::int64_t row = at / shape[3] % shape[2];
  const std::int64_t head = at / shape[3] / shape[2];  // over all batches
  const std::int64_t blocks = (shape[2] + options.block_rows - 1) / options.block_rows;
  switch (options.granularity) {
    case Granularity::tensor:
      return 0;
    case Granularity::head:
      return static_cast<std::size_t>(head);
    case Granularity::block:
      return static_cast<std::size_t>(head * blocks + row / options.block_rows);
    case Granularity::row:
      return static_cast<std::size_t>(head * shape[2] + row);
    default:
      return static_cast<std::size_t>(head * shape[3] + column);
  }
}

inline float naive_scale(DType format, float amax) {
  if (amax == 0) return 1.0f;
  if (format == DType::sim8) return amax;
  return amax / (format == DType::e4m3 ? 448.0f : format == DType::e5m2 ? 57344.0f : 127.0f);
}

inline float naive_step(DType format, float scale) {
  return format == DType::sim8 ? scale / 127.0f : scale;
}

inline std::vector<float> naive_scales(const Values& x, DType format,
                                       const QuantizeOptions& options) {
  std::vector<float> scales(
      static_cast<std::size_t>(scale_count(x.shape, options.granularity, options.block_rows)));
  for (std::size_t i = 0; i < x.data.size(); ++i) {
    float& amax = scales[group_of(x.shape, options, i)];
    if (std::isfinite(x.data[i])) amax = std::max(amax, std::fabs(x.data[i]));
  }
  for (float& scale : scales) scale = naive_scale(format, scale);
  return scales;
}

// With a given scale.
inline std::uint8_t naive_code(DType format, float x, float scale, float widening = 1.0f) {
  const float inverse = widening / naive_step(format, scale);
  return static_cast<std::uint8_t>(second::encode(definition(format), x * inverse));
}
// With a scale that quantize() found: compensates for the average loss of rounding to FP8.
inline std::uint8_t naive_found_code(DType format, float x, float scale) {
  return naive_code(format, x, scale,
                    format == DType::e4m3   ? 1.0007f
                    : format == DType::e5m2 ? 1.0028f
                                            : 1.0f);
}

inline double squared_error(const Values& x, const Quantized& q, std::size_t group) {
  double sum = 0;
  for (std::size_t i = 0; i < x.data.size(); ++i) {
    if (group_of(x.shape, q.options, i) != group || !std::isfinite(x.data[i])) continue;
    const double code = second::decode(definition(q.format), q.codes[i]);
    const double error = x.data[i] - code * naive_step(q.format, q.scales[group]);
    sum += error * error;
  }
  return sum;
}

inline const DType kFormats[] = {DType::e4m3, DType::e5m2, DType::int8, DType::sim8};

inline std::string case_name(DType format, Granularity granularity) {
  return std::string(name(format)) + " by " + std::string(name(granularity));
}

}  // namespace octavo::testing
