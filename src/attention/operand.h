// What a precision mode does to each of Q, K and V on its way into the products.
#pragma once

#include <array>
#include <optional>

#include "octavo/octavo.hpp"

namespace octavo {

struct OperandFormat {
  DType stored = DType::f16;       // as the caller gives it
  std::optional<DType> rounded{};  // to 16 bits first, or to 8 bits by scales of our own
  Granularity granularity = Granularity::head;  // of those scales, or of the caller's
  // The code that the largest magnitude under a scale of ours becomes.
  float largest_code = 0;
  bool smooth = false;
  bool hadamard = false;

  bool scales_of_caller() const { return is_8bit(stored); }
  bool scales_of_ours() const { return rounded && is_8bit(*rounded); }
};

struct OperandFormats {
  OperandFormat q, k, v;
};

// 8-bit inputs are taken as they are, whatever the precision.
OperandFormats operand_formats(const Problem& problem);

}  // namespace octavo
