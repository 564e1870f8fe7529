// SPDX-License-Identifier: Apache-2.0
// dequantize() and convert(): tensor to tensor, row by row.
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/tensor_checks.h"
#include "numeric/checks.h"
#include "numeric/formats.h"
#include "numeric/quantize.h"
#include "numeric/scale.h"

namespace octavo {
namespace {

Status check_written(const ConstTensor& in, std::string_view in_what, const Tensor& out) {
  OCTAVO_RETURN_IF_ERROR(check_values("out", out));
  OCTAVO_RETURN_IF_ERROR(check_same_shape("out", out, in_what, in));
  OCTAVO_RETURN_IF_ERROR(validate_no_self_overlap("out", out));
  return validate_apart("out", out, in_what, in);
}

// Calls `change(b, h, s, row)` between reading a row and writing it.
template <class Change>
Status transfer(const ConstTensor& in, const Tensor& out, Change change) {
  if (is_empty(in)) return {};
  const auto [batch, heads, rows, columns] = in.shape;
  std::vector<float> row(static_cast<std::size_t>(columns));
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t s = 0; s < rows; ++s) {
        load_row(in, b, h, s, row.data());
        change(b, h, s, row);
        store_row(out, b, h, s, row.data());
      }
    }
  }
  return {};
}

}  // namespace

Status dequantize(const ConstTensor& quantized, const Scales& scales, const Tensor& out) {
  return without_exceptions([&]() -> Status {
    OCTAVO_RETURN_IF_ERROR(check_grouping(scales.granularity, scales.block_rows));
    OCTAVO_RETURN_IF_ERROR(check_8bit("quantized", quantized));
    OCTAVO_RETURN_IF_ERROR(check_written(quantized, "quantized", out));
    OCTAVO_RETURN_IF_ERROR(
        check_scales(scales, quantized.shape, std::numeric_limits<float>::denorm_min()));
    OCTAVO_RETURN_IF_ERROR(
        validate_apart("out", out, "scales", scales_as_tensor(scales, quantized.shape)));

    const ScaleIndex index = scale_index(scales, quantized.shape);
    return transfer(quantized, out, [&](auto b, auto h, auto s, std::vector<float>& row) {
      for (std::size_t c = 0; c < row.size(); ++c) {
        const float scale = scales.data[index.at(b, h, s, static_cast<std::int64_t>(c))];
        row[c] *= step_of(quantized.dtype, scale);
      }
    });
  });
}

Status convert(const ConstTensor& in, const Tensor& out) {
  return without_exceptions([&]() -> Status {
    OCTAVO_RETURN_IF_ERROR(check_values("in", in));
    OCTAVO_RETURN_IF_ERROR(check_written(in, "in", out));
    return transfer(in, out, [](auto, auto, auto, std::vector<float>&) {});
  });
}

}  // namespace octavo
