// SPDX-License-Identifier: Apache-2.0
// Smoothing and rotation: what they change, what they must not, and that they are deterministic.
#include <gtest/gtest.h>

#include "numeric/quantize.h"
#include "numeric/quantize_cases.h"

namespace octavo::testing {
namespace {

double dot(const float* a, const float* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

TEST(Hadamard, MatchesItsDefinition) {
  // Element (i, j) is (-1)^popcount(i & j) / sqrt(n).
  constexpr int kN = 16;
  for (int j = 0; j < kN; ++j) {
    float row[kN] = {};
    row[j] = 1.0f;
    hadamard_rotate(row, kN);
    for (int i = 0; i < kN; ++i)
      ASSERT_EQ(row[i], __builtin_popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? 0.25f : -0.25f);
  }
}

TEST(Hadamard, PreservesProductsAndIsItsOwnInverse) {
  for (const std::int64_t columns : {1, 2, 5, 24, 64, 80, 96, 128, 256}) {
    Values q({1, 1, 1, columns}, 1), k({1, 1, 1, columns}, 2);
    const std::vector<float> original = q.data;
    const double before = dot(q.data.data(), k.data.data(), columns);
    hadamard_rotate(q.data.data(), columns);
    hadamard_rotate(k.data.data(), columns);
    EXPECT_NEAR(dot(q.data.data(), k.data.data(), columns), before, 1e-4) << columns;
    if (columns % 2 == 0) {
      EXPECT_NE(q.data, original) << columns;
    }
    hadamard_rotate(q.data.data(), columns);
    for (std::size_t c = 0; c < original.size(); ++c)
      EXPECT_NEAR(q.data[c], original[c], 1e-5) << columns;
  }
  hadamard_rotate(nullptr, 0);
}

TEST(Hadamard, WorksBlockByBlock) {
  Values x({1, 1, 1, 24});
  std::vector<float> parts = x.data;
  hadamard_rotate(x.data.data(), 24);
  for (std::size_t block = 0; block < 24; block += 8) hadamard_rotate(&parts[block], 8);
  EXPECT_EQ(x.data, parts);
}

TEST(Hadamard, SpreadsOutliers) {
  Values x({1, 1, 64, 64});
  for (std::size_t i = 7; i < x.data.size(); i += 64) x.data[i] *= 50.0f;
  QuantizeOptions options;
  options.granularity = Granularity::row;
  const double plain = quantized(x, DType::int8, options).stats.amax;
  options.hadamard = true;
  EXPECT_LT(quantized(x, DType::int8, options).stats.amax, plain / 3);
}

TEST(Smoothing, MeanIsSummedInDoubleRowAfterRow) {
  Values x({2, 3, 37, 5});
  const Quantized q = [&] {
    QuantizeOptions options;
    options.smooth = true;
    return quantized(x, DType::e4m3, options);
  }();
  for (std::size_t head = 0; head < 6; ++head) {
    for (std::size_t c = 0; c < 5; ++c) {
      double sum = 0;
      for (std::size_t s = 0; s < 37; ++s) sum += x.data[(head * 37 + s) * 5 + c];
      ASSERT_EQ(q.mean[head * 5 + c], static_cast<float>(sum / 37));
    }
  }
}

TEST(Smoothing, NotFiniteValuesCountAsZeroInTheMean) {
  Values x({1, 1, 4, 1});
  x.data = {1.0f, std::numeric_limits<float>::infinity(), 5.0f, std::nanf("")};
  float mean = -1;
  mean_rows(x.tensor(), &mean);
  EXPECT_EQ(mean, 1.5f);
}

TEST(Smoothing, IsAppliedBeforeRotationAndScales) {
  for (const bool smooth : {false, true}) {
    for (const bool hadamard : {false, true}) {
      for (const ScaleRule rule : {ScaleRule::amax, ScaleRule::least_squares}) {
        Values x({2, 2, 9, 8});
        for (std::size_t i = 3; i < x.data.size(); i += 8) x.data[i] += 10.0f;
        QuantizeOptions options;
        options.granularity = Granularity::block;
        options.block_rows = 4;
        options.rule = rule;
        options.smooth = smooth;
        options.hadamard = hadamard;
        const Quantized got = quantized(x, DType::e5m2, options);

        std::vector<float> mean(2 * 2 * 8);
        mean_rows(x.tensor(), mean.data());
        for (std::size_t row = 0; row < 36; ++row) {
          float* values = &x.data[row * 8];
          for (std::size_t c = 0; smooth && c < 8; ++c) values[c] -= mean[row / 9 * 8 + c];
          if (hadamard) hadamard_rotate(values, 8);
        }
        options.smooth = options.hadamard = false;
        const Quantized expected = quantized(x, DType::e5m2, options);
        EXPECT_EQ(got.codes, expected.codes) << smooth << hadamard;
        EXPECT_EQ(got.scales, expected.scales) << smooth << hadamard;
        EXPECT_EQ(got.stats.sqnr_db, expected.stats.sqnr_db);
      }
    }
  }
}

TEST(Smoothing, RemovesACommonOffset) {
  Values x({1, 2, 128, 16});
  for (float& value : x.data) value += 20.0f;
  QuantizeOptions options;
  const double plain = quantized(x, DType::int8, options).stats.amax;
  options.smooth = true;
  EXPECT_LT(quantized(x, DType::int8, options).stats.amax, plain / 3);
}

TEST(Quantize, RepeatsBitForBit) {
  QuantizeOptions options;
  options.smooth = options.hadamard = true;
  options.rule = ScaleRule::least_squares;
  Values x({2, 2, 33, 24});
  const Quantized first = quantized(x, DType::e4m3, options);
  const Quantized again = quantized(x, DType::e4m3, options);
  EXPECT_EQ(first.codes, again.codes);
  EXPECT_EQ(first.scales, again.scales);
  EXPECT_EQ(first.mean, again.mean);
  EXPECT_EQ(first.stats.sqnr_db, again.stats.sqnr_db);
}

}  // namespace
}  // namespace octavo::testing
