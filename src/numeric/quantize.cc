// SPDX-License-Identifier: Apache-2.0
// quantize(): checks, means, scales, quantized values, statistics; in this order.
#include "numeric/quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/tensor_checks.h"
#include "numeric/checks.h"
#include "numeric/formats.h"
#include "numeric/scale.h"
#include "numeric/transposed.h"

namespace octavo {

// Steps of one row, one per column so that every granularity goes through the same loop.
struct RowSteps {
  std::vector<float> step;
  std::vector<float> inverse;

  explicit RowSteps(std::size_t columns) : step(columns), inverse(columns) {}

  // `given`: the scales are the caller's.
  void set(DType format, const float* scales, bool given, const ScaleIndex& index, std::int64_t b,
           std::int64_t h, std::int64_t s) {
    const bool by_column = index.granularity == Granularity::channel;
    const float* first = scales + index.at(b, h, s, 0);
    for (std::size_t c = 0; c < step.size(); ++c) {
      if (c > 0 && !by_column) {
        step[c] = step[0];
        inverse[c] = inverse[0];
        continue;
      }
      step[c] = step_of(format, first[by_column ? c : 0]);
      inverse[c] = given ? 1.0f / step[c] : inverse_of_found(format, step[c]);
    }
  }
};

// Memory for one row.
struct RowScratch {
  explicit RowScratch(std::size_t columns) : values(columns), quantized(columns), steps(columns) {}

  std::vector<float> values;
  std::vector<std::uint8_t> quantized;
  RowSteps steps;
};

FoundScales::FoundScales() = default;
FoundScales::FoundScales(FoundScales&&) noexcept = default;
FoundScales& FoundScales::operator=(FoundScales&&) noexcept = default;
FoundScales::~FoundScales() = default;

namespace {

// A caller's scale is used unchanged, so 1/step must be finite.
float smallest_scale(DType format) {
  constexpr float kSmallestStep = std::numeric_limits<float>::min();
  return format == DType::sim8 ? 127.0f * kSmallestStep : kSmallestStep;
}

void encode_row(DType format, std::span<const float> row, std::span<const float> inverse,
                std::uint8_t* quantized) {
  const auto encode = [&](auto encode_one) {
    for (std::size_t c = 0; c < row.size(); ++c) quantized[c] = encode_one(row[c] * inverse[c]);
  };
  switch (format) {
    case DType::e4m3:
      return encode([](float x) { return e4m3_from_f32(x); });
    case DType::e5m2:
      return encode([](float x) { return e5m2_from_f32(x); });
    case DType::int8:
      return encode([](float x) { return int8_from_f32(x); });
    default:
      return encode([](float x) { return sim8_from_f32(x); });
  }
}

// Counts and sums, in the order of the rows.
class Statistics {
 public:
  explicit Statistics(DType format) : table_(decode_table(format)), limit_(limit(format)) {}

  void add(std::span<const float> row, const RowSteps& steps, const std::uint8_t* quantized) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      const float x = row[c];
      ++stats_.values;
      if (std::isnan(x)) {
        ++stats_.nan_values;
        continue;
      }
      const float back = table_[quantized[c]] * steps.step[c];
      clipped_ += std::fabs(x / steps.step[c]) > limit_;
      flushed_ += back == 0.0f && x != 0.0f;
      if (std::isinf(x)) {
        ++stats_.inf_values;
        continue;
      }
      const double value = x;
      const double error = value - static_cast<double>(back);
      stats_.amax = std::max(stats_.amax, std::fabs(value));
      signal_ += value * value;
      noise_ += error * error;
    }
  }

  RangeStats result() const {
    RangeStats stats = stats_;
    const double values = std::max(1.0, static_cast<double>(stats.values));
    stats.clipped_fraction = static_cast<double>(clipped_) / values;
    stats.flushed_fraction = static_cast<double>(flushed_) / values;
    stats.sqnr_db = noise_ == 0.0 ? std::numeric_limits<double>::infinity()
                                  : 10.0 * std::log10(signal_ / noise_);
    return stats;
  }

 private:
  // Three roundings may put amax / step above the format's largest; that is not clipping.
  static float limit(DType format) { return largest(format) * (1.0f + 0x1p-22f); }

  const std::array<float, 256>& table_;
  float limit_;
  RangeStats stats_{};
  std::int64_t clipped_ = 0;
  std::int64_t flushed_ = 0;
  double signal_ = 0;
  double noise_ = 0;
};

// Writes the quantized values of one head in the requested layout.
class QuantizedWriter {
 public:
  // `row`: scratch for one row.
  QuantizedWriter(const Tensor& quantized, VLayout layout, std::int64_t b, std::int64_t h,
                  std::span<std::uint8_t> row)
      : quantized_(quantized),
        head_(static_cast<std::uint8_t*>(quantized.data) + b * quantized.stride[0] +
              h * quantized.stride[1]),
        transposed_(layout == VLayout::transposed),
        row_(row) {}

  // The memory for the values of row s; put(s) then moves them to their place.
  std::uint8_t* row(std::int64_t s) { return transposed_ ? row_.data() : head_ + s * stride(); }
  void put(std::int64_t s) {
    if (transposed_) put_column_by_column(s);
  }
  // Pads the last group of 16 keys with zeros.
  void fill_up(std::int64_t rows) {
    if (!transposed_) return;
    std::fill(row_.begin(), row_.end(), encode_8bit(quantized_.dtype, 0.0f));
    for (std::int64_t s = rows; s < quantized_.shape[3]; ++s) put_column_by_column(s);
  }

 private:
  std::int64_t stride() const { return quantized_.stride[2]; }
  void put_column_by_column(std::int64_t s) {
    std::uint8_t* const first = head_ + place_of_key(s);
    for (std::size_t c = 0; c < row_.size(); ++c)
      first[static_cast<std::int64_t>(c) * stride()] = row_[c] ^ flipped_bits(quantized_.dtype);
  }

  const Tensor& quantized_;
  std::uint8_t* const head_;
  const bool transposed_;
  const std::span<std::uint8_t> row_;
};

RangeStats write_quantized(const ConstTensor& x, const QuantizeOptions& options,
                           const Tensor& quantized, const float* scales, const float* mean,
                           RowScratch& scratch, bool want_stats) {
  const auto [batch, heads, rows, columns] = x.shape;
  const ScaleIndex index =
      scale_index({scales, options.granularity, options.block_rows, {}}, x.shape);
  Statistics statistics(quantized.dtype);
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const float* head_mean = mean ? mean + (b * heads + h) * columns : nullptr;
      const RowTransform transform{head_mean, options.hadamard};
      QuantizedWriter writer(quantized, options.layout, b, h, scratch.quantized);
      for (std::int64_t s = 0; s < rows; ++s) {
        load_row(x, b, h, s, scratch.values.data());
        transform.apply(scratch.values.data(), columns);
        scratch.steps.set(quantized.dtype, scales, options.scales_given, index, b, h, s);
        std::uint8_t* const quantized_row = writer.row(s);
        encode_row(quantized.dtype, scratch.values, scratch.steps.inverse, quantized_row);
        if (want_stats) statistics.add(scratch.values, scratch.steps, quantized_row);
        writer.put(s);
      }
      writer.fill_up(rows);
    }
  }
  return statistics.result();
}

}  // namespace

Result<float> max_quantized_of(const QuantizeOptions& options, DType format) {
  const float wanted = options.max_quantized;
  if (format == DType::sim8 && wanted != 0)
    return invalid("max_quantized", fmt::format("{}", wanted),
                   "0 for sim8, whose scale is the amax");
  if (!(wanted >= 0 && wanted <= largest(format)))
    return invalid(
        "max_quantized", fmt::format("{}", wanted),
        fmt::format("0 (the format's) to {}, the largest of {}", largest(format), name(format)));
  return wanted == 0 ? largest(format) : wanted;
}

Status check_quantize(const ConstTensor& x, const QuantizeOptions& options, const Tensor& quantized,
                      const float* scales, const std::array<std::int64_t, 4>& scaled,
                      const float* mean, std::int64_t means, std::int64_t columns) {
  OCTAVO_RETURN_IF_ERROR(check_options(options));
  OCTAVO_RETURN_IF_ERROR(check_values("x", x));
  OCTAVO_RETURN_IF_ERROR(check_8bit("quantized", quantized));
  OCTAVO_RETURN_IF_ERROR(options.layout == VLayout::rows
                             ? check_same_shape("quantized", quantized, "x", x)
                             : check_transposed_shape("quantized", quantized, "x", x, columns));
  OCTAVO_RETURN_IF_ERROR(validate_no_self_overlap("quantized", quantized));
  OCTAVO_RETURN_IF_ERROR(validate_apart("quantized", quantized, "x", x));

  const ConstTensor view =
      scales_as_tensor({scales, options.granularity, options.block_rows, {}}, scaled);
  OCTAVO_RETURN_IF_ERROR(validate_tensor("scales", view));
  OCTAVO_RETURN_IF_ERROR(validate_apart("quantized", quantized, "scales", view));
  // Only validated, never written through.
  const Tensor written{const_cast<float*>(scales), view.dtype, view.shape, view.stride};
  if (!options.scales_given) OCTAVO_RETURN_IF_ERROR(validate_apart("scales", written, "x", x));

  if (!options.smooth) return {};
  const Tensor mean_view =
      Tensor::bhsd(const_cast<float*>(mean), DType::f32, means, x.shape[1], x.shape[3], 1);
  OCTAVO_RETURN_IF_ERROR(validate_tensor("mean", mean_view));
  OCTAVO_RETURN_IF_ERROR(validate_apart("mean", mean_view, "x", x));
  OCTAVO_RETURN_IF_ERROR(validate_apart("mean", mean_view, "quantized", quantized));
  return validate_apart("mean", mean_view, "scales", view);
}

Status quantize(const ConstTensor& x, const QuantizeOptions& options, const Tensor& quantized,
                float* scales, float* mean, RangeStats* stats) {
  return without_exceptions([&]() -> Status {
    OCTAVO_RETURN_IF_ERROR(check_8bit("quantized", quantized));
    const Result<float> max_quantized = max_quantized_of(options, quantized.dtype);
    if (!max_quantized.ok()) return max_quantized.status();
    return quantize_to(*max_quantized, x, options, quantized, scales, mean, stats);
  });
}

Result<FoundScales> find_scales(float max_quantized, const ConstTensor& x,
                                const QuantizeOptions& options, const Tensor& quantized,
                                const float* scales, const float* mean) {
  OCTAVO_RETURN_IF_ERROR(check_quantize(x, options, quantized, scales, x.shape, mean, x.shape[0],
                                        transposed_columns(x.shape[2])));
  if (options.scales_given)
    OCTAVO_RETURN_IF_ERROR(check_scales({scales, options.granularity, options.block_rows, {}},
                                        x.shape, smallest_scale(quantized.dtype)));
  FoundScales found;
  if (options.smooth) {
    found.mean.resize(static_cast<std::size_t>(x.shape[0] * x.shape[1] * x.shape[3]));
    mean_rows(x, found.mean.data());
  }
  if (!options.scales_given) {
    found.scales.resize(
        static_cast<std::size_t>(scale_count(x.shape, options.granularity, options.block_rows)));
    compute_scales(x, quantized.dtype, options, options.smooth ? found.mean.data() : nullptr,
                   found.scales.data(), max_quantized);
  }
  const bool empty = std::find(x.shape.begin(), x.shape.end(), 0) != x.shape.end();
  const auto columns = static_cast<std::size_t>(empty ? 0 : x.shape[3]);
  found.scratch = std::make_unique<RowScratch>(columns);
  return found;
}

void quantize_by(const FoundScales& found, const ConstTensor& x, const QuantizeOptions& options,
                 const Tensor& quantized, float* scales, float* mean, RangeStats* stats) {
  if (options.smooth) std::copy(found.mean.begin(), found.mean.end(), mean);
  std::copy(found.scales.begin(), found.scales.end(), scales);
  const RangeStats result =
      write_quantized(x, options, quantized, scales, options.smooth ? found.mean.data() : nullptr,
                      *found.scratch, stats != nullptr);
  if (stats != nullptr) *stats = result;
}

Status quantize_to(float max_quantized, const ConstTensor& x, const QuantizeOptions& options,
                   const Tensor& quantized, float* scales, float* mean, RangeStats* stats) {
  return without_exceptions([&]() -> Status {
    const Result<FoundScales> found =
        find_scales(max_quantized, x, options, quantized, scales, mean);
    if (!found.ok()) return found.status();
    quantize_by(*found, x, options, quantized, scales, mean, stats);
    return {};
  });
}

}  // namespace octavo
