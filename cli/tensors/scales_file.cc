// SPDX-License-Identifier: Apache-2.0
// Reads scales and checks them against their tensor.
#include "tensors/scales_file.h"

#include <fmt/format.h>

#include "error.h"
#include "exit.h"
#include "tensors/tensor_file.h"

namespace octavo::cli {

std::vector<std::int64_t> scale_shape(const Shape4& shape, Granularity granularity,
                                      std::int64_t block_rows) {
  if (granularity == Granularity::tensor) return {1};
  std::vector<std::int64_t> result = {shape[0], shape[1]};
  if (granularity == Granularity::block) {
    if (block_rows < 1) {
      require(bad_input("--block-rows", fmt::format("{}", block_rows), "1 and more"));
    }
    result.push_back(shape[2] / block_rows + (shape[2] % block_rows != 0 ? 1 : 0));
  }
  if (granularity == Granularity::row) result.push_back(shape[2]);
  if (granularity == Granularity::channel) result.push_back(shape[3]);
  return result;
}

HostTensor load_scales(std::string_view flag, const std::string& spec, const Shape4& shape,
                       Granularity granularity, std::int64_t block_rows) {
  HostTensor scales = require(load_tensor(flag, spec));
  if (scales.dtype != DType::f32) {
    require(bad_input(flag, fmt::format("of type {}", name(scales.dtype)), "f32"));
  }
  const std::vector<std::int64_t> wanted = scale_shape(shape, granularity, block_rows);
  const bool single = granularity == Granularity::tensor && scales.elements() == 1;
  if (scales.shape != wanted && !single) {
    require(bad_input(flag, fmt::format("of shape {}", shape_text(scales.shape)),
                      fmt::format("{} for granularity {}", shape_text(wanted), name(granularity))));
  }
  return scales;
}

}  // namespace octavo::cli
