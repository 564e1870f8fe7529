// The grid of a quantizer launch, and the rows of each CTA.
#pragma once

#include "gpu/quantize/operand_conversion.h"
#include "gpu/quantize/prepare_operands.h"

namespace octavo {

// For one operand. A second pass keeps the number of partial maxima that the first pass set.
void set_grid(const Conversion& x, QuantizeLaunch& launch);
// For all three operands; the second of two launches keeps that number too.
void set_grid(const Conversions& x, QuantizeLaunch& launch);

}  // namespace octavo
