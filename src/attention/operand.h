// SPDX-License-Identifier: Apache-2.0
// The formats to which a precision mode converts Q, K and V before the matrix products.
#pragma once

#include <array>
#include <optional>

#include "octavo/octavo.hpp"

namespace octavo {

struct OperandFormat {
  DType stored = DType::f16;       // the dtype of the caller's tensor
  std::optional<DType> rounded{};  // the 16-bit or 8-bit dtype to which the library converts it
  Granularity granularity = Granularity::head;  // of the library's scales, or of the caller's
  // The quantized value of the largest magnitude under a scale of the library.
  float max_quantized = 0;
  bool smooth = false;
  bool hadamard = false;

  bool scales_of_caller() const { return is_8bit(stored); }
  bool scales_of_ours() const { return rounded && is_8bit(*rounded); }
};

struct OperandFormats {
  OperandFormat q, k, v;
};

// With 8-bit inputs no precision mode converts anything.
OperandFormats operand_formats(const Problem& problem);

}  // namespace octavo
