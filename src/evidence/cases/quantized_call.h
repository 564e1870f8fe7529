// SPDX-License-Identifier: Apache-2.0
// Quantizes the wide operands of a call in advance, as its precision would inside the call.
#pragma once

#include <memory>
#include <vector>

#include "evidence/cases/inputs.h"

namespace octavo::evidence {

struct QuantizedCall {
  struct Operand {
    TensorMemory values;
    std::vector<float> scales;
  };
  Operand q, k, v;
  Arguments arguments;  // with the same out
};

// For a precision that quantizes all three operands; not for a varlen batch.
Result<QuantizedCall> quantize_ahead(const Arguments& wide, const Options& options,
                                     VLayout v_layout);

}  // namespace octavo::evidence
