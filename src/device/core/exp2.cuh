// SPDX-License-Identifier: Apache-2.0
// 2^x on the FMA pipe, without the special-function units.
#pragma once

#include "device/ptx/math.cuh"
#include "device/ptx/target.cuh"

namespace octavo {

// x = n + f with integer n and |f| <= 1/2. 2^f is its Taylor polynomial (relative error at most
// 4e-5, an eighth of an FP16 ulp), and n is added to the exponent. Results below 2^-126 become 0.
OCTAVO_DEVICE float exp2_polynomial(float x) {
  constexpr float kMagic = 12582912;  // 1.5 * 2^23: adding it leaves n in the low bits
  const float shifted = x + kMagic;
  const float f = x - (shifted - kMagic);
  float p = ptx::fused_multiply_add(0.00961812911f, f, 0.0555041087f);
  p = ptx::fused_multiply_add(p, f, 0.240226507f);
  p = ptx::fused_multiply_add(p, f, 0.693147181f);
  p = ptx::fused_multiply_add(p, f, 1.0f);
  return x < -126.0f ? 0.0f : ptx::float_of_bits(ptx::bits_of(p) + (ptx::bits_of(shifted) << 23));
}

}  // namespace octavo
