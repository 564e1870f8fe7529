// SPDX-License-Identifier: Apache-2.0
// compare() on values whose errors are known.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "octavo/evidence.hpp"

namespace octavo {
namespace {

TEST(Compare, KnownErrors) {
  const std::vector<float> out = {1, 2, 3, 5};
  const std::vector<double> expected = {1, 2, 3, 3};
  const ErrorStats stats =
      compare(ConstTensor::bhsd(out.data(), DType::f32, 1, 1, 2, 2), expected.data());
  EXPECT_DOUBLE_EQ(stats.max_abs, 2);
  EXPECT_DOUBLE_EQ(stats.rmse, 1);
  EXPECT_DOUBLE_EQ(stats.relative_rmse, 1 / std::sqrt(23.0 / 4));
  EXPECT_DOUBLE_EQ(stats.cosine, 29 / std::sqrt(39.0 * 23.0));
  EXPECT_EQ(stats.not_finite, 0);
}

TEST(Compare, FollowsStrides) {
  // (1, 2, 2, 1) in memory order (rows, heads), each element followed by a value that must not
  // count.
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> out = {1, nan, 3, nan, 2, nan, 4, nan};
  const std::vector<double> expected = {1, 2, 3, 4};
  const ConstTensor view{out.data(), DType::f32, {1, 2, 2, 1}, {8, 2, 4, 1}};
  const ErrorStats stats = compare(view, expected.data());
  EXPECT_EQ(stats.max_abs, 0);
  EXPECT_EQ(stats.not_finite, 0);
  EXPECT_DOUBLE_EQ(stats.cosine, 1);
}

TEST(Compare, CountsNonFiniteValues) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> out = {inf, 1, inf, std::nanf("")};
  const std::vector<double> expected = {1, 1, inf,
                                        0};  // where the reference is not finite: allowed
  const ErrorStats stats =
      compare(ConstTensor::bhsd(out.data(), DType::f32, 1, 1, 2, 2), expected.data());
  EXPECT_EQ(stats.not_finite, 2);
  EXPECT_EQ(stats.max_abs, 0);
}

TEST(Compare, ZerosAndNothing) {
  const std::vector<float> zeros(4, 0.0F), ones(4, 1.0F);
  const std::vector<double> expected(4, 0.0);
  const auto view = [](const std::vector<float>& x) {
    return ConstTensor::bhsd(x.data(), DType::f32, 1, 1, 2, 2);
  };
  EXPECT_EQ(compare(view(zeros), expected.data()).cosine, 1);
  EXPECT_EQ(compare(view(ones), expected.data()).cosine, 0);
  EXPECT_EQ(compare(view(ones), expected.data()).relative_rmse, 1);
  const ErrorStats none = compare(ConstTensor::bhsd(nullptr, DType::f32, 0, 1, 2, 2), nullptr);
  EXPECT_EQ(none.max_abs, 0);
  EXPECT_EQ(none.rmse, 0);
}

}  // namespace
}  // namespace octavo
