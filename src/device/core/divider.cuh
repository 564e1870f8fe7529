// SPDX-License-Identifier: Apache-2.0
// Division by a number that the host knows, as a multiplication and a shift. A division in the
// kernel is some twenty dependent instructions, and a kernel of five microseconds began with five
// of them.
#pragma once

#include "config/portable.h"

namespace octavo {

struct Divider {
  u32 multiplier = 0;  // 0: divides by 1
  u32 shift = 0;

  // The quotient rounded down; exact for n below 2^31.
  OCTAVO_HD constexpr i32 quotient(i32 n) const {
    if (multiplier == 0) return n;
    return static_cast<i32>(static_cast<u64>(n) * multiplier >> 32 >> shift);
  }
};

// The multiplier is 2^(31 + k) / divisor, rounded up, where 2^k is the smallest power of two that
// is at least the divisor. The error is less than 2^-31 of the quotient per unit of n, so it never
// reaches the next integer.
OCTAVO_HD constexpr Divider divider(i32 divisor) {
  if (divisor <= 1) return {};
  u32 k = 1;
  while ((u32{1} << k) < static_cast<u32>(divisor)) ++k;
  const u64 power = u64{1} << (31 + k);
  const u64 d = static_cast<u64>(divisor);
  return {static_cast<u32>((power + d - 1) / d), k - 1};
}

}  // namespace octavo
