// SPDX-License-Identifier: Apache-2.0
// The generator: Philox's published vectors, pinned values, and the distribution of normal values.
#include "numeric/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "numeric/formats.h"
#include "octavo/evidence.hpp"

namespace octavo {
namespace {

TEST(Philox, KnownAnswers) {
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox4x32(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32(~0ull, ~0ull, ~0ull),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Computed independently, in Python, from the description in random.h.
TEST(RandomNormal, PinnedBits) {
  const struct {
    std::uint64_t seed, stream, index;
    std::uint32_t bits;
  } pins[] = {
      {42, 0, 0, 0xBF0C807E},       {42, 0, 1, 0x3F52BE8A},
      {42, 0, 2, 0x3EF93182},       {42, 0, 3, 0x400EFC1C},
      {42, 0, 4, 0x3D3F0769},       {42, 1, 0, 0x404219D6},
      {0, 0, 0, 0x3D40884E},        {~0ull, ~0ull, ~0ull, 0x3F5D2C79},
      {1, 2, 3, 0xBF5BF6F5},        {0x123456789abcdef, 7, 1000000000000, 0xBFB6B1CA},
      {43, 0, 1000003, 0xBF28FF13},
  };
  for (const auto& pin : pins)
    EXPECT_EQ(std::bit_cast<std::uint32_t>(random_normal_value(pin.seed, pin.stream, pin.index)),
              pin.bits)
        << pin.seed << " " << pin.stream << " " << pin.index;
}

TEST(RandomNormal, PinnedDigest) {  // FNV-1a over the bits, computed in the same way
  std::vector<float> values(65536);
  fill_normal(values.data(), 65536, 42, 3, 0);
  std::uint64_t digest = 0xcbf29ce484222325;
  for (const float value : values)
    digest = (digest ^ std::bit_cast<std::uint32_t>(value)) * 0x100000001b3;
  EXPECT_EQ(digest, 0xd8ccca0ec02dd5eb);
}

TEST(RandomNormal, BulkGenerationIsTheSameFromAnyStart) {
  for (std::uint64_t first = 0; first < 9; ++first) {
    std::vector<float> values(11, -99.0f);
    fill_normal(values.data(), 10, 5, 6, first);
    for (std::uint64_t i = 0; i < 10; ++i)
      ASSERT_EQ(values[i], random_normal_value(5, 6, first + i)) << first << " " << i;
    ASSERT_EQ(values[10], -99.0f);
  }
}

// Bounds are five standard deviations of the estimate, for one seed that never changes.
TEST(RandomNormal, MomentsAndTails) {
  constexpr int kCount = 1 << 20;
  std::vector<float> values(kCount);
  fill_normal(values.data(), kCount, 42, 0, 0);
  double sum = 0, square = 0, cube = 0, fourth = 0, neighbours = 0;
  int beyond3 = 0, beyond4 = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = values[static_cast<std::size_t>(i)];
    sum += x;
    square += x * x;
    cube += x * x * x;
    fourth += x * x * x * x;
    beyond3 += std::fabs(x) > 3;
    beyond4 += std::fabs(x) > 4;
    if (i > 0) neighbours += x * values[static_cast<std::size_t>(i - 1)];
  }
  const double n = kCount;
  const double sigma = 1 / std::sqrt(n);
  EXPECT_NEAR(sum / n, 0, 5 * sigma);
  EXPECT_NEAR(square / n, 1, 5 * std::sqrt(2.0) * sigma);
  EXPECT_NEAR(cube / n, 0, 5 * std::sqrt(15.0) * sigma);
  EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96.0) * sigma);
  EXPECT_NEAR(neighbours / n, 0, 5 * sigma);
  for (const auto& [count, limit] : {std::pair{beyond3, 3.0}, {beyond4, 4.0}}) {
    const double p = std::erfc(limit / std::sqrt(2.0));
    EXPECT_NEAR(count / n, p, 5 * std::sqrt(p) * sigma) << limit;
  }
}

TEST(RandomNormal, DistributionByKolmogorovSmirnov) {
  constexpr std::size_t kCount = 1 << 18;
  for (const std::uint64_t stream : {0u, 1u, 2u}) {
    std::vector<float> values(kCount);
    fill_normal(values.data(), kCount, 7, stream, 0);
    std::sort(values.begin(), values.end());
    double distance = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      const double p = 0.5 * std::erfc(-values[i] / std::sqrt(2.0));
      const double n = kCount;
      const double rank = static_cast<double>(i);
      distance = std::max({distance, std::fabs(p - rank / n), std::fabs(p - (rank + 1) / n)});
    }
    // 1.95 / sqrt(n): one sample in a thousand exceeds it.
    EXPECT_LT(distance, 1.95 / std::sqrt(static_cast<double>(kCount))) << stream;
  }
}

TEST(RandomBelow, StaysBelowAndReachesAll) {
  std::vector<int> counts(7);
  for (std::uint64_t i = 0; i < 7000; ++i) {
    const std::uint64_t value = random_below(1, 2, i, 7);
    ASSERT_LT(value, 7u);
    ++counts[value];
  }
  for (const int count : counts) EXPECT_NEAR(count, 1000, 150);
  EXPECT_EQ(random_below(1, 2, 3, 1), 0u);
}

TEST(RandomTensor, IndexIsLogicalWhateverTheLayout) {
  constexpr std::int64_t kB = 2, kH = 3, kS = 5, kD = 7;
  std::vector<float> plain(kB * kH * kS * kD);
  std::vector<std::uint16_t> swapped(plain.size());
  ASSERT_TRUE(random_normal(Tensor::bhsd(plain.data(), DType::f32, kB, kH, kS, kD), 42, 9).ok());
  const Tensor bshd = Tensor::bshd(swapped.data(), DType::f16, kB, kH, kS, kD);
  ASSERT_TRUE(random_normal(bshd, 42, 9).ok());
  std::uint64_t index = 0;
  for (std::int64_t b = 0; b < kB; ++b)
    for (std::int64_t h = 0; h < kH; ++h)
      for (std::int64_t s = 0; s < kS; ++s)
        for (std::int64_t d = 0; d < kD; ++d, ++index) {
          const float expected = random_normal_value(42, 9, index);
          ASSERT_EQ(plain[index], expected);
          const std::int64_t at = b * bshd.stride[0] + h * bshd.stride[1] + s * bshd.stride[2] + d;
          ASSERT_EQ(swapped[static_cast<std::size_t>(at)], f16_from_f32(expected));
        }
}

TEST(RandomTensor, BadTensorsAreRefused) {
  float value = 1.0f;
  const auto refused = [&value](const Tensor& tensor) {
    const Status status = random_normal(tensor, 1, 1);
    EXPECT_EQ(status.code(), ErrorCode::invalid_argument) << status.message();
    EXPECT_EQ(value, 1.0f);
    return status.message();
  };
  EXPECT_EQ(refused(Tensor::bhsd(&value, DType::int8, 1, 1, 1, 1)),
            "tensor.dtype is int8; supported: f32, f16, bf16.");
  refused(Tensor::bhsd(nullptr, DType::f32, 1, 1, 1, 1));
  refused(Tensor::bhsd(&value, DType::f32, 1, 1, -1, 1));
  refused({&value, DType::f32, {1, 1, 2, 1}, {0, 0, 0, 1}});  // two rows at one address
  EXPECT_TRUE(random_normal(Tensor::bhsd(nullptr, DType::f32, 1, 1, 0, 8), 1, 1).ok());
}

}  // namespace
}  // namespace octavo
