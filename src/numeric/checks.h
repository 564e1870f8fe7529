// SPDX-License-Identifier: Apache-2.0
// Checks of quantization's arguments, made before anything is written.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "octavo/octavo.hpp"

namespace octavo {

// A valid tensor of f32, f16 or bf16.
Status check_values(std::string_view what, const ConstTensor& x);
// An 8-bit tensor.
Status check_8bit(std::string_view what, const ConstTensor& quantized);
Status check_same_shape(std::string_view what, const ConstTensor& tensor,
                        std::string_view other_what, const ConstTensor& other);
// `quantized` has the shape of `other` with VLayout::transposed, of so many columns.
Status check_transposed_shape(std::string_view what, const ConstTensor& quantized,
                              std::string_view other_what, const ConstTensor& other,
                              std::int64_t columns);
// Granularity, block_rows, rule and layout have valid values.
Status check_grouping(Granularity granularity, std::int64_t block_rows);
Status check_options(const QuantizeOptions& options);

// The scale array as a tensor (B, H, n, 1) with n scales per head.
ConstTensor scales_as_tensor(const Scales& scales, const std::array<std::int64_t, 4>& shape);
// Every scale is finite and at least `smallest`, which is positive.
Status check_scales(const Scales& scales, const std::array<std::int64_t, 4>& shape, float smallest);

}  // namespace octavo
