// A call of wide operands as one of codes: quantized before it, as its precision would inside it.
#pragma once

#include <memory>
#include <vector>

#include "evidence/inputs.h"

namespace octavo::evidence {

struct QuantizedCall {
  struct Operand {
    TensorMemory codes;
    std::vector<float> scales;
  };
  Operand q, k, v;
  Arguments arguments;  // into the same out
};

// For a precision that makes 8 bits of all three, of a batch that is not packed.
Result<QuantizedCall> quantize_ahead(const Arguments& wide, const Options& options,
                                     VLayout v_layout);

}  // namespace octavo::evidence
