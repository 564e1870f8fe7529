// SPDX-License-Identifier: Apache-2.0
#include "device/core/divider.cuh"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>

namespace octavo {
namespace {

constexpr i32 kLargest = INT32_MAX;

TEST(Divider, EverySmallQuotient) {
  for (i32 d = 1; d <= 300; ++d)
    for (i32 n = 0; n <= 3000; ++n) ASSERT_EQ(divider(d).quotient(n), n / d) << n << " / " << d;
}

// The first wrong quotient would be just below or at a multiple.
TEST(Divider, AroundMultiplesUpToTheLargest) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200'000; ++trial) {
    const i32 d = static_cast<i32>(random() >> (1 + random() % 31)) | 1;
    const i64 multiple = i64{static_cast<i32>(random() >> 1)} / d * d;
    for (const i64 n : {multiple - 1, multiple, multiple + d - 1, i64{kLargest}}) {
      if (n < 0 || n > kLargest) continue;
      ASSERT_EQ(divider(d).quotient(static_cast<i32>(n)), n / d) << n << " / " << d;
    }
  }
}

}  // namespace
}  // namespace octavo
