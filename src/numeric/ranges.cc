// SPDX-License-Identifier: Apache-2.0
// Computes scales: the amax of each group, and the search for the least squared error.
#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <vector>

#include "numeric/formats.h"
#include "numeric/quantize.h"
#include "numeric/scale.h"

namespace octavo {
namespace {

// A box of rows that contains one whole group, or one per column.
struct Box {
  std::int64_t b_begin, b_end, h_begin, h_end, s_begin, s_end;
};

// Visits boxes in the order of the scale array, so that a visitor may append its results.
template <class Visit>
void for_each_box(const ConstTensor& x, const QuantizeOptions& options, Visit visit) {
  const auto [batch, heads, rows, columns] = x.shape;
  if (options.granularity == Granularity::tensor) return visit(Box{0, batch, 0, heads, 0, rows});
  const bool whole_head =
      options.granularity == Granularity::head || options.granularity == Granularity::channel;
  std::int64_t height = options.granularity == Granularity::row ? 1 : options.block_rows;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      if (whole_head) {
        visit(Box{b, b + 1, h, h + 1, 0, rows});
        continue;
      }
      height = std::min(height, rows);  // so that s + height cannot overflow
      for (std::int64_t s = 0; s < rows; s += height)
        visit(Box{b, b + 1, h, h + 1, s, std::min(s + height, rows)});
    }
  }
}

// Visits the rows of a box after the transforms.
template <class Visit>
void for_each_row(const ConstTensor& x, const QuantizeOptions& options, const float* mean,
                  const Box& box, std::span<float> row, Visit visit) {
  for (std::int64_t b = box.b_begin; b < box.b_end; ++b) {
    for (std::int64_t h = box.h_begin; h < box.h_end; ++h) {
      const float* head_mean = mean ? mean + (b * x.shape[1] + h) * x.shape[3] : nullptr;
      const RowTransform transform{head_mean, options.hadamard};
      for (std::int64_t s = box.s_begin; s < box.s_end; ++s) {
        load_row(x, b, h, s, row.data());
        transform.apply(row.data(), x.shape[3]);
        visit();
      }
    }
  }
}

// Magnitudes as integers: they have the order of finite floats, and compilers vectorize the loop.
std::uint32_t finite_magnitude(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFF;
  return bits < kF32Infinity ? bits : 0;
}

// One group if amax has one element, otherwise one per column.
void widen(std::span<const float> row, std::span<float> amax) {
  if (amax.size() == 1) {
    std::uint32_t largest_bits = std::bit_cast<std::uint32_t>(amax[0]);
    for (const float x : row) largest_bits = std::max(largest_bits, finite_magnitude(x));
    amax[0] = std::bit_cast<float>(largest_bits);
    return;
  }
  for (std::size_t c = 0; c < row.size(); ++c)
    amax[c] = std::max(amax[c], std::bit_cast<float>(finite_magnitude(row[c])));
}

// The candidate scales of one group, as arrays: the loop over them dominates the search, and
// compilers vectorize it.
struct Candidates {
  using Floats = std::array<float, kLeastSquaresCandidates>;
  Floats scale, step, inverse;
  std::array<double, kLeastSquaresCandidates> squared_error;

  void start(DType format, float amax, float max_quantized) {
    for (std::size_t k = 0; k < scale.size(); ++k) {
      scale[k] =
          scale_from_amax(format, amax * least_squares_ratio(static_cast<int>(k)), max_quantized);
      step[k] = step_of(format, scale[k]);
      inverse[k] = inverse_of_found(format, step[k]);
      squared_error[k] = 0.0;
    }
  }

  template <DType kFormat>
  void add(float x) {
    if (finite_magnitude(x) == 0) return;  // zero has no error; non-finite values do not count
    for (std::size_t k = 0; k < scale.size(); ++k) {
      const float back = round_8bit<kFormat>(x * inverse[k]) * step[k];
      const double error = static_cast<double>(x) - static_cast<double>(back);
      squared_error[k] += error * error;
    }
  }

  float best() const {  // the first of equal candidates, which has the largest scale
    const auto least = std::min_element(squared_error.begin(), squared_error.end());
    return scale[static_cast<std::size_t>(least - squared_error.begin())];
  }
};

// One group if there is one set of candidates, otherwise one per column.
void add_row(DType format, std::span<const float> row, std::span<Candidates> groups) {
  const auto add = [&]<DType kFormat>() {
    for (std::size_t c = 0; c < row.size(); ++c)
      groups[groups.size() == 1 ? 0 : c].template add<kFormat>(row[c]);
  };
  switch (format) {
    case DType::e4m3:
      return add.template operator()<DType::e4m3>();
    case DType::e5m2:
      return add.template operator()<DType::e5m2>();
    default:
      return add.template operator()<DType::int8>();
  }
}

}  // namespace

void compute_amax(const ConstTensor& x, const QuantizeOptions& options, const float* mean,
                  float* amax) {
  const auto columns = static_cast<std::size_t>(x.shape[3]);
  const std::size_t groups = options.granularity == Granularity::channel ? columns : 1;
  std::vector<float> row(columns);
  for_each_box(x, options, [&](const Box& box) {
    const std::span<float> box_amax(amax, groups);
    std::fill(box_amax.begin(), box_amax.end(), 0.0f);
    for_each_row(x, options, mean, box, row, [&] { widen(row, box_amax); });
    amax += groups;
  });
}

void compute_scales(const ConstTensor& x, DType format, const QuantizeOptions& options,
                    const float* mean, float* scales, float max_quantized) {
  const auto columns = static_cast<std::size_t>(x.shape[3]);
  const std::size_t groups = options.granularity == Granularity::channel ? columns : 1;
  if (options.rule == ScaleRule::amax) {
    compute_amax(x, options, mean, scales);
    const std::int64_t count = scale_count(x.shape, options.granularity, options.block_rows);
    for (std::int64_t i = 0; i < count; ++i)
      scales[i] = scale_from_amax(format, scales[i], max_quantized);
    return;
  }
  std::vector<float> row(columns);
  std::vector<float> amax(groups);
  std::vector<Candidates> candidates(groups);
  for_each_box(x, options, [&](const Box& box) {
    std::fill(amax.begin(), amax.end(), 0.0f);
    for_each_row(x, options, mean, box, row, [&] { widen(row, amax); });
    for (std::size_t g = 0; g < groups; ++g) candidates[g].start(format, amax[g], max_quantized);
    for_each_row(x, options, mean, box, row, [&] { add_row(format, row, candidates); });
    for (const Candidates& group : candidates) *scales++ = group.best();
  });
}

}  // namespace octavo
