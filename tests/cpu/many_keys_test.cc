// SPDX-License-Identifier: Apache-2.0
// Sums of many keys: errors do not grow with their number.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cpu/attention.h"
#include "cpu/kernels.h"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

class CpuManyKeys : public testing::TestWithParam<const cpu::Kernels*> {
 protected:
  void SetUp() override { cpu::use_kernels(GetParam()); }
  void TearDown() override { cpu::use_kernels(nullptr); }
};

constexpr std::int64_t kColumns = 2;

// One query over so many keys, whose K and V are read again and again (stride 0): the output is V.
struct EqualKeys {
  std::vector<float> q{0.4f, -0.3f}, k{0.7f, 0.2f}, v{0.1f, -1.7f};
  std::vector<float> out = std::vector<float>(kColumns), lse = std::vector<float>(1);
  Arguments arguments;

  explicit EqualKeys(std::int64_t keys) {
    const std::array<std::int64_t, 4> shape{1, 1, keys, kColumns}, stride{0, 0, 0, 1};
    arguments.q = Tensor::bhsd(q.data(), DType::f32, 1, 1, 1, kColumns);
    arguments.k = Tensor{k.data(), DType::f32, shape, stride};
    arguments.v = Tensor{v.data(), DType::f32, shape, stride};
    arguments.out = Tensor::bhsd(out.data(), DType::f32, 1, 1, 1, kColumns);
    arguments.lse = Tensor::bhsd(lse.data(), DType::f32, 1, 1, 1, 1);
  }
};

// 64 keys, then 32 blocks of them, each off by a third of a half ulp a term at most.
constexpr double kBound = 0x1p-24 * (16 + 2 * (64 + 32) / 3.0);

TEST_P(CpuManyKeys, EqualKeysGiveTheirValue) {
  // So many for one of them only: they take seconds.
  const bool best = GetParam() == cpu::available_kernels().front();
  const std::int64_t most = best ? 40'000'000 : 1'000'001;
  for (const std::int64_t keys :
       {std::int64_t{1}, std::int64_t{63}, std::int64_t{64}, std::int64_t{65}, std::int64_t{2047},
        std::int64_t{2048}, std::int64_t{2049}, std::int64_t{100'000}, most}) {
    EqualKeys call(keys);
    ASSERT_TRUE(attention(call.arguments).ok());
    for (std::size_t c = 0; c < kColumns; ++c)
      EXPECT_NEAR(call.out[c], call.v[c], kBound * std::abs(call.v[c])) << keys << " keys";
    const double score = (0.4 * 0.7 - 0.3 * 0.2) / std::sqrt(2.0);
    const double lse = score + std::log(static_cast<double>(keys));
    EXPECT_NEAR(call.lse[0], lse, 2e-6 + 0x1p-23 * lse) << keys << " keys";
  }
}

// Weights and values that all differ, none of them negative, and a maximum that rises on the way:
// groups of keys are rescaled.
TEST_P(CpuManyKeys, RisingMaximaKeepTheBound) {
  constexpr std::int64_t kKeys = 50'000;
  std::vector<float> q{1.0f}, k(kKeys), v(kKeys), out(1);
  double sum = 0, o = 0;
  for (std::int64_t j = 0; j < kKeys; ++j) {
    const auto i = static_cast<std::size_t>(j);
    k[i] = static_cast<float>(0.5 * std::sin(0.37 * static_cast<double>(j)) +
                              8.0 * static_cast<double>(j) / kKeys);
    v[i] = static_cast<float>(1.5 + std::cos(0.11 * static_cast<double>(j)));
    sum += std::exp(static_cast<double>(k[i]));
    o += std::exp(static_cast<double>(k[i])) * static_cast<double>(v[i]);
  }
  Arguments a;
  a.q = Tensor::bhsd(q.data(), DType::f32, 1, 1, 1, 1);
  a.k = Tensor::bhsd(k.data(), DType::f32, 1, 1, kKeys, 1);
  a.v = Tensor::bhsd(v.data(), DType::f32, 1, 1, kKeys, 1);
  a.out = Tensor::bhsd(out.data(), DType::f32, 1, 1, 1, 1);
  a.scale = 1.0f;
  ASSERT_TRUE(attention(a).ok());
  EXPECT_NEAR(out[0], o / sum, (kBound + 0x1p-24 * 2 * 9) * 2.5);
}

// Rows that see windows over the ends of groups: alone, or beside rows that see all keys.
TEST_P(CpuManyKeys, BitsDoNotDependOnOtherRowsOverManyGroups) {
  constexpr std::int64_t kKeys = 5000, kD = 8;
  std::vector<float> q(kKeys * kD), k(kKeys * kD), v(kKeys * kD), all(kKeys * kD), one(kKeys * kD);
  for (std::size_t i = 0; i < q.size(); ++i) {
    const auto x = static_cast<double>(i);
    q[i] = static_cast<float>(std::sin(1.1 * x));
    k[i] = static_cast<float>(std::sin(0.7 * x + 1));
    v[i] = static_cast<float>(std::cos(0.3 * x) + 0.5);
  }
  const auto view = [](std::vector<float>& x, std::int64_t rows) {
    return Tensor::bhsd(x.data(), DType::f32, 1, 1, rows, kD);
  };
  Arguments a;
  a.q = view(q, kKeys);
  a.k = view(k, kKeys);
  a.v = view(v, kKeys);
  a.out = view(all, kKeys);
  Options options;
  options.causal = Causal::bottom_right;
  options.window_left = 2100;
  ASSERT_TRUE(attention(a, options).ok());
  // The last rows in the same places, as a call of their own.
  for (const std::int64_t rows : {1, 100, 700}) {
    a.q = view(q, kKeys);
    a.q.data = q.data() + (kKeys - rows) * kD;
    a.q.shape[2] = rows;
    a.out = view(one, rows);
    ASSERT_TRUE(attention(a, options).ok());
    for (std::int64_t i = 0; i < rows * kD; ++i)
      ASSERT_EQ(one[static_cast<std::size_t>(i)],
                all[static_cast<std::size_t>((kKeys - rows) * kD + i)])
          << rows << " rows, element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, CpuManyKeys, testing::ValuesIn(cpu::available_kernels()),
                         [](const auto& kernels) { return std::string(kernels.param->name); });

}  // namespace
}  // namespace octavo
