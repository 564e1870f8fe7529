// SPDX-License-Identifier: Apache-2.0
// The correction of FP8's rounding bias, shared by the GPU and CPU quantizers.
#pragma once

#include "config/element.h"
#include "config/portable.h"

namespace octavo {

// The factor that values are multiplied by before they are rounded, if the library computed their
// scale. Rounding to nearest is too small on average where the step doubles, because the interval
// that rounds to a power of two reaches twice as far up as down: values that are uniform in the
// logarithm lose 6.8e-4 of their sum in E4M3, whose steps are eighths, and four times that in E5M2,
// whose steps are quarters. Values that are representable in FP8 do not change.
OCTAVO_HD constexpr float widening(Element to) {
  return to == Element::e4m3 ? 1.0007f : to == Element::e5m2 ? 1.0028f : 1.0f;
}

}  // namespace octavo
