// SPDX-License-Identifier: Apache-2.0
// random_normal(): fills a tensor with the generator's values.
#include <vector>

#include "base/error.h"
#include "base/tensor_checks.h"
#include "numeric/checks.h"
#include "numeric/quantize.h"
#include "numeric/random.h"
#include "octavo/evidence.hpp"

namespace octavo {

Status random_normal(const Tensor& tensor, std::uint64_t seed, std::uint64_t stream) {
  return without_exceptions([&]() -> Status {
    OCTAVO_RETURN_IF_ERROR(check_values("tensor", tensor));
    OCTAVO_RETURN_IF_ERROR(validate_no_self_overlap("tensor", tensor));
    const auto [batch, heads, rows, columns] = tensor.shape;
    if (batch == 0 || heads == 0 || rows == 0 || columns == 0) return {};
    std::vector<float> row(static_cast<std::size_t>(tensor.shape[3]));
    std::uint64_t index = 0;
    for (std::int64_t b = 0; b < tensor.shape[0]; ++b) {
      for (std::int64_t h = 0; h < tensor.shape[1]; ++h) {
        for (std::int64_t s = 0; s < tensor.shape[2]; ++s) {
          fill_normal(row.data(), tensor.shape[3], seed, stream, index);
          store_row(tensor, b, h, s, row.data());
          index += row.size();
        }
      }
    }
    return {};
  });
}

}  // namespace octavo
