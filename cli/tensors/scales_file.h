// SPDX-License-Identifier: Apache-2.0
// Reads scales of 8-bit tensors from files, and gives the shape that each granularity needs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "octavo/octavo.hpp"
#include "tensors/host_tensor.h"

namespace octavo::cli {

// The shape of the scales: (1), (B, H), (B, H, blocks), (B, H, S) or (B, H, D).
std::vector<std::int64_t> scale_shape(const Shape4& shape, Granularity granularity,
                                      std::int64_t block_rows);

// Loads scales in f32 and checks their shape.
HostTensor load_scales(std::string_view flag, const std::string& spec, const Shape4& shape,
                       Granularity granularity, std::int64_t block_rows);

}  // namespace octavo::cli
