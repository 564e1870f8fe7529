// How many CTAs a quantizer has, and which rows each: what the host says of it before a launch.
#pragma once

#include "gpu/operand_conversion.h"
#include "gpu/prepare_operands.h"

namespace octavo {

// Of a launch for one operand. A second pass keeps what the first set: how many maxima there are.
void set_grid(const Conversion& x, QuantizeLaunch& launch);
// Of a launch for all three; the second of two keeps that likewise.
void set_grid(const Conversions& x, QuantizeLaunch& launch);

}  // namespace octavo
