// How rounding to FP8 is kept from losing: the quantizers ask here, and who does the same on the
// CPU.
#pragma once

#include "config/element.h"
#include "config/portable.h"

namespace octavo {

// By what values are widened before they are rounded to codes of a scale that was found for them.
// Nearest is too small on average where steps double, as the code of a power of two reaches twice
// as far up as down: values spread evenly in the logarithm lose 6.8e-4 of their sum in E4M3, whose
// steps are eighths, and four times that in E5M2, with quarters. What is a code already stays the
// same.
OCTAVO_HD constexpr float widening(Element to) {
  return to == Element::e4m3 ? 1.0007f : to == Element::e5m2 ? 1.0028f : 1.0f;
}

}  // namespace octavo
