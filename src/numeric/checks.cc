// SPDX-License-Identifier: Apache-2.0
// Checks of quantization's arguments, with one error message each.
#include "numeric/checks.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/tensor_checks.h"
#include "numeric/scale.h"
#include "numeric/transposed.h"

namespace octavo {
namespace {

std::string shape_text(const ConstTensor& t) {
  return fmt::format("({}, {}, {}, {})", t.shape[0], t.shape[1], t.shape[2], t.shape[3]);
}

}  // namespace

Status check_values(std::string_view what, const ConstTensor& x) {
  OCTAVO_RETURN_IF_ERROR(validate_tensor(what, x));
  if (is_8bit(x.dtype))
    return invalid(fmt::format("{}.dtype", what), name(x.dtype), "f32, f16, bf16");
  return {};
}

Status check_8bit(std::string_view what, const ConstTensor& quantized) {
  OCTAVO_RETURN_IF_ERROR(validate_tensor(what, quantized));
  if (!is_8bit(quantized.dtype))
    return invalid(fmt::format("{}.dtype", what), name(quantized.dtype), "e4m3, e5m2, int8, sim8");
  return {};
}

Status check_same_shape(std::string_view what, const ConstTensor& tensor,
                        std::string_view other_what, const ConstTensor& other) {
  if (tensor.shape == other.shape) return {};
  return invalid(fmt::format("{}.shape", what), shape_text(tensor),
                 fmt::format("the shape of {}, here {}", other_what, shape_text(other)));
}

Status check_transposed_shape(std::string_view what, const ConstTensor& quantized,
                              std::string_view other_what, const ConstTensor& other,
                              std::int64_t columns) {
  ConstTensor expected = other;
  expected.shape = {other.shape[0], other.shape[1], other.shape[3], columns};
  if (quantized.shape == expected.shape) return {};
  return invalid(fmt::format("{}.shape", what), shape_text(quantized),
                 fmt::format("{}, those of {} transposed", shape_text(expected), other_what));
}

Status check_grouping(Granularity granularity, std::int64_t block_rows) {
  if (std::find(kAllGranularities.begin(), kAllGranularities.end(), granularity) ==
      kAllGranularities.end())
    return invalid("granularity", fmt::format("code {}", static_cast<int>(granularity)),
                   "tensor, head, block, row, channel");
  if (granularity == Granularity::block && block_rows <= 0)
    return invalid("block_rows", fmt::format("{}", block_rows), "1 or more");
  return {};
}

Status check_options(const QuantizeOptions& options) {
  OCTAVO_RETURN_IF_ERROR(check_grouping(options.granularity, options.block_rows));
  if (options.rule != ScaleRule::amax && options.rule != ScaleRule::least_squares)
    return invalid("rule", fmt::format("code {}", static_cast<int>(options.rule)),
                   "amax, least_squares");
  if (options.layout > VLayout::transposed)
    return invalid("layout", fmt::format("code {}", static_cast<int>(options.layout)),
                   "rows, transposed");
  return {};
}

ConstTensor scales_as_tensor(const Scales& scales, const std::array<std::int64_t, 4>& shape) {
  if (scales.granularity == Granularity::tensor)
    return {scales.data, DType::f32, {1, 1, 1, 1}, {1, 1, 1, 1}};
  const std::int64_t per_head = scales_per_head(shape, scales.granularity, scales.block_rows);
  const std::array<std::int64_t, 3> stride = scale_index(scales, shape).stride;
  return {scales.data,
          DType::f32,
          {shape[0], shape[1], per_head, 1},
          {stride[0], stride[1], stride[2], 1}};
}

Status check_scales(const Scales& scales, const std::array<std::int64_t, 4>& shape,
                    float smallest) {
  const ConstTensor view = scales_as_tensor(scales, shape);
  OCTAVO_RETURN_IF_ERROR(validate_tensor("scales", view));
  for (std::int64_t b = 0; b < view.shape[0]; ++b) {
    for (std::int64_t h = 0; h < view.shape[1]; ++h) {
      for (std::int64_t i = 0; i < view.shape[2]; ++i) {
        const std::int64_t at = b * view.stride[0] + h * view.stride[1] + i * view.stride[2];
        const float scale = scales.data[at];
        if (std::isfinite(scale) && scale >= smallest) continue;
        return invalid(fmt::format("scales[{}]", at), fmt::format("{}", scale),
                       fmt::format("finite values from {} up", smallest));
      }
    }
  }
  return {};
}

}  // namespace octavo
