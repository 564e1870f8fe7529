// SPDX-License-Identifier: Apache-2.0
// Each kernel against scalar code, for every instruction set that this machine supports.
#include "cpu/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "numeric/formats.h"
#include "numeric/random.h"

namespace octavo::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Free {
  void operator()(float* p) const { std::free(p); }
};
using Aligned = std::unique_ptr<float[], Free>;

Aligned aligned(std::int64_t floats, float value = 0) {
  const std::size_t bytes = (static_cast<std::size_t>(floats) * sizeof(float) + 255) / 256 * 256;
  Aligned array(static_cast<float*>(std::aligned_alloc(256, bytes)));
  std::fill_n(array.get(), floats, value);
  return array;
}

Aligned random(std::int64_t floats, std::uint64_t stream) {
  Aligned array = aligned(floats);
  for (std::int64_t i = 0; i < floats; ++i)
    array[static_cast<std::size_t>(i)] =
        random_normal_value(3, stream, static_cast<std::uint64_t>(i));
  return array;
}

class CpuKernels : public testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& k_ = *GetParam();
};

INSTANTIATE_TEST_SUITE_P(Targets, CpuKernels, testing::ValuesIn(available_kernels()),
                         [](const auto& target) { return std::string(target.param->name); });

TEST_P(CpuKernels, ScoresForEveryTail) {
  for (std::int64_t vectors = 1; vectors <= k_.max_vectors; ++vectors)
    for (const std::int64_t keys : {1, 2, 3, 4, 5, 7, 8, 9, 15, 64})
      for (const std::int64_t head_dim : {1, 3, 4, 64, 65, 130}) {
        const std::int64_t width = vectors * k_.lanes, pitch = head_dim + 3;
        const Aligned keys_in = random(keys * pitch, 1), q = random(head_dim * width, 2);
        const Aligned s = aligned(keys * width + 1, -7);
        k_.scores(keys_in.get(), pitch, keys, head_dim, q.get(), vectors, s.get());
        for (std::int64_t i = 0; i < keys; ++i)
          for (std::int64_t j = 0; j < width; ++j) {
            double expected = 0;
            for (std::int64_t c = 0; c < head_dim; ++c)
              expected += static_cast<double>(keys_in[static_cast<std::size_t>(i * pitch + c)]) *
                          static_cast<double>(q[static_cast<std::size_t>(c * width + j)]);
            ASSERT_NEAR(s[static_cast<std::size_t>(i * width + j)], expected, 2e-5)
                << vectors << ' ' << keys << ' ' << head_dim;
          }
        ASSERT_EQ(s[static_cast<std::size_t>(keys * width)], -7.0f);
      }
}

TEST_P(CpuKernels, AccumulateForEveryTail) {
  for (std::int64_t vectors = 1; vectors <= k_.max_vectors; ++vectors)
    for (const std::int64_t keys : {1, 2, 3, 5, 64})
      for (const std::int64_t head_dim : {1, 2, 3, 7, 8, 9, 64, 65}) {
        const std::int64_t width = vectors * k_.lanes, pitch = head_dim + 3;
        const Aligned v = random(keys * pitch, 1), p = random(keys * width, 2);
        const Aligned rescale = random(width, 3), before = random(head_dim * width, 4);
        const Aligned o = aligned(head_dim * width + 1, -7);
        std::copy_n(before.get(), head_dim * width, o.get());
        k_.accumulate(v.get(), pitch, keys, head_dim, p.get(), vectors, rescale.get(), o.get());
        for (std::int64_t c = 0; c < head_dim; ++c)
          for (std::int64_t j = 0; j < width; ++j) {
            const auto at = static_cast<std::size_t>(c * width + j);
            double expected = static_cast<double>(before[at]) *
                              static_cast<double>(rescale[static_cast<std::size_t>(j)]);
            for (std::int64_t i = 0; i < keys; ++i)
              expected += static_cast<double>(v[static_cast<std::size_t>(i * pitch + c)]) *
                          static_cast<double>(p[static_cast<std::size_t>(i * width + j)]);
            ASSERT_NEAR(o[at], expected, 2e-5) << vectors << ' ' << keys << ' ' << head_dim;
          }
        ASSERT_EQ(o[static_cast<std::size_t>(head_dim * width)], -7.0f);
      }
}

// The exponential, through the softmax of scores below a maximum of 0.
TEST_P(CpuKernels, ExponentialIsAccurate) {
  const std::int64_t width = k_.lanes, keys = 20000;
  const Aligned s = aligned(keys * width), max = aligned(width), sum = aligned(width),
                rescale = aligned(width);
  const auto x = [&](std::int64_t i) { return -130.0f * static_cast<float>(i) / 20000.0f; };
  for (std::int64_t i = 0; i < keys; ++i) std::fill_n(s.get() + i * width, width, x(i));
  k_.softmax(s.get(), keys, 1, nullptr, max.get(), sum.get(), rescale.get());
  EXPECT_EQ(rescale[0], 1.0f);
  EXPECT_EQ(s[0], 1.0f);
  for (std::int64_t i = 0; i < keys; ++i) {
    const double expected = std::exp2(static_cast<double>(x(i)));
    const float found = s[static_cast<std::size_t>(i * width + width - 1)];
    if (x(i) < -126.5f)
      ASSERT_EQ(found, 0.0f) << x(i);
    else
      ASSERT_NEAR(found / expected, 1.0, 2e-7) << x(i);
  }
}

// Softcaps of every ratio to the score, so that tanh is small, large and in between.
TEST_P(CpuKernels, SoftcapIsAccurate) {
  const std::int64_t width = k_.lanes, keys = 4000;
  const Aligned s = aligned(keys * width);
  const auto x = [](std::int64_t i) {
    return static_cast<float>((i % 2 == 0 ? 1 : -1) *
                              std::exp2(-30 + 0.01 * static_cast<double>(i)));
  };
  for (const float softcap : {0.25f, 1.0f, 50.0f}) {
    for (std::int64_t i = 0; i < keys; ++i) std::fill_n(s.get() + i * width, width, x(i));
    TileModifiers modifiers;
    modifiers.softcap = softcap;
    const Aligned derivative = aligned(keys * width);
    modifiers.derivative = derivative.get();
    k_.modify_scores(s.get(), keys, 1, modifiers);
    for (std::int64_t i = 0; i < keys; ++i) {
      const double t = std::tanh(double{x(i)} / double{softcap});
      ASSERT_NEAR(derivative[static_cast<std::size_t>(i * width)], 1 - t * t, 3e-7) << x(i);
      const double expected = double{softcap} * std::tanh(double{x(i)} / double{softcap});
      const float found = s[static_cast<std::size_t>(i * width + width - 1)];
      ASSERT_NEAR(found / expected, 1.0, 5e-7) << x(i) << " with softcap " << softcap;
    }
  }
}

TEST_P(CpuKernels, SoftcapOfNonFiniteScores) {
  const Aligned s = aligned(3 * k_.lanes);
  std::fill_n(s.get(), k_.lanes, kInfinity);
  std::fill_n(s.get() + k_.lanes, k_.lanes, -kInfinity);
  std::fill_n(s.get() + 2 * k_.lanes, k_.lanes, NAN);
  TileModifiers modifiers;
  modifiers.softcap = 3;
  k_.modify_scores(s.get(), 3, 1, modifiers);
  EXPECT_EQ(s[0], 3.0f);
  EXPECT_EQ(s[static_cast<std::size_t>(k_.lanes)], -3.0f);
  EXPECT_TRUE(std::isnan(s[static_cast<std::size_t>(2 * k_.lanes)]));
}

TEST_P(CpuKernels, ModifiesScoresInOrder) {
  for (std::int64_t vectors = 1; vectors <= k_.max_vectors; ++vectors)
    for (int given = 0; given < 8; ++given) {
      const std::int64_t width = vectors * k_.lanes, keys = 9;
      const Aligned s = random(keys * width + 1, 40), before = aligned(keys * width + 1);
      const Aligned slope = random(width, 41), diagonal = aligned(width);
      const Aligned addition = random(keys * width, 42);
      s[5] = NAN, addition[5] = -kInfinity;  // hidden although it is NaN
      addition[7] = kInfinity;
      std::copy_n(s.get(), keys * width + 1, before.get());
      for (std::int64_t i = 0; i < width; ++i)
        diagonal[static_cast<std::size_t>(i)] = static_cast<float>(i % 20 - 3);
      TileModifiers modifiers;
      if ((given & 1) != 0) modifiers.softcap = 0.75f;
      if ((given & 2) != 0) modifiers.slope = slope.get();
      modifiers.diagonal = diagonal.get();
      modifiers.first_key = 4;
      if ((given & 4) != 0) modifiers.addition = addition.get();
      k_.modify_scores(s.get(), keys, vectors, modifiers);
      for (std::int64_t k = 0; k < keys; ++k)
        for (std::int64_t i = 0; i < width; ++i) {
          const auto at = static_cast<std::size_t>(k * width + i),
                     lane = static_cast<std::size_t>(i);
          double expected = double{before[at]};
          if ((given & 1) != 0) expected = 0.75 * std::tanh(expected / 0.75);
          if ((given & 2) != 0)
            expected -=
                double{slope[lane]} * std::abs(double{diagonal[lane]} - static_cast<double>(4 + k));
          if ((given & 4) != 0)
            expected = addition[at] == -kInfinity ? -HUGE_VAL : expected + double{addition[at]};
          if (std::isfinite(expected))
            ASSERT_NEAR(s[at], expected, 1e-6 * (1 + std::abs(expected))) << k << ' ' << i;
          else
            ASSERT_TRUE(s[at] == expected || (std::isnan(s[at]) && std::isnan(expected)));
        }
      ASSERT_EQ(s[static_cast<std::size_t>(keys * width)],
                before[static_cast<std::size_t>(keys * width)]);
    }
}

TEST_P(CpuKernels, SoftmaxStepsOverTilesAndLimits) {
  const std::int64_t width = 2 * k_.lanes, keys = 9;
  const Aligned max = aligned(width, -kInfinity), sum = aligned(width), rescale = aligned(width),
                begin = aligned(width), end = aligned(width);
  std::vector<double> total(static_cast<std::size_t>(width), 0.0);
  for (std::int64_t tile = 0; tile < 3; ++tile) {
    const Aligned s = random(keys * width, 10 + static_cast<std::uint64_t>(tile));
    const Aligned before = aligned(keys * width);
    for (std::int64_t j = 0; j < width; ++j) {
      // Lane 0 sees no key, lane 1 one key, the others more and more.
      begin[static_cast<std::size_t>(j)] = j == 1 ? 4.0f : 0.0f;
      end[static_cast<std::size_t>(j)] = j == 0   ? 0.0f
                                         : j == 1 ? 5.0f
                                                  : static_cast<float>(1 + j % 9);
      // A NaN that only the last kind of lane sees.
      if (j % 9 != 8) s[static_cast<std::size_t>(8 * width + j)] = NAN;
    }
    std::copy_n(s.get(), keys * width, before.get());
    const LaneLimits limits{begin.get(), end.get()};
    k_.softmax(s.get(), keys, 2, &limits, max.get(), sum.get(), rescale.get());
    for (std::int64_t j = 0; j < width; ++j) {
      const auto lane = static_cast<std::size_t>(j);
      for (std::int64_t i = 0; i < keys; ++i) {
        const auto at = static_cast<std::size_t>(i * width + j);
        const bool seen = static_cast<float>(i) >= begin[lane] && static_cast<float>(i) < end[lane];
        if (seen) total[lane] += std::exp2(static_cast<double>(before[at]));
        ASSERT_NEAR(s[at],
                    seen ? std::exp2(static_cast<double>(before[at]) - double{max[lane]}) : 0.0,
                    1e-6)
            << "key " << i << " lane " << j;
      }
      const double found = sum[lane] == 0.0f ? 0.0 : sum[lane] * std::exp2(double{max[lane]});
      ASSERT_NEAR(found, total[lane], 1e-5 * (1 + total[lane])) << "lane " << j;
    }
  }
}

TEST_P(CpuKernels, ProductOfEveryShape) {
  for (const std::int64_t vectors : {1, 2, 3, 4, 5, 7})
    for (const std::int64_t rows : {1, 3, 8, 13})
      for (const std::int64_t depth : {1, 64, 70})
        for (const bool transposed : {false, true})
          for (const bool add : {false, true}) {
            const std::int64_t width = vectors * k_.lanes, pitch = width + 2 * k_.lanes;
            const std::int64_t a_pitch = (transposed ? rows : depth) + 3;
            const Aligned a = random(a_pitch * (transposed ? depth : rows), 20);
            const Aligned b = random(depth * pitch, 21), c = random(rows * pitch, 22);
            const Aligned before = aligned(rows * pitch);
            std::copy_n(c.get(), rows * pitch, before.get());
            k_.product({a.get(), a_pitch, transposed, b.get(), pitch, c.get(), pitch, rows, depth,
                        vectors, add});
            for (std::int64_t r = 0; r < rows; ++r)
              for (std::int64_t i = 0; i < pitch; ++i) {
                const auto at = static_cast<std::size_t>(r * pitch + i);
                double sum = add || i >= width ? double{before[at]} : 0.0;
                for (std::int64_t d = 0; d < depth && i < width; ++d)
                  sum += double{a[static_cast<std::size_t>(transposed ? d * a_pitch + r
                                                                      : r * a_pitch + d)]} *
                         double{b[static_cast<std::size_t>(d * pitch + i)]};
                ASSERT_NEAR(c[at], sum, i < width ? 2e-5 : 0.0) << "row " << r << " column " << i;
              }
          }
}

TEST_P(CpuKernels, SoftmaxBackwardAndItsLimits) {
  const std::int64_t width = 2 * k_.lanes, pitch = 3 * k_.lanes, keys = 9;
  const Aligned s = random(keys * pitch, 30), dp = random(keys * pitch, 31);
  const Aligned lse = random(pitch, 32), delta = random(pitch, 33);
  const Aligned begin = aligned(pitch), end = aligned(pitch);
  for (std::int64_t j = 0; j < width; ++j) {
    begin[static_cast<std::size_t>(j)] = static_cast<float>(j % 3);
    end[static_cast<std::size_t>(j)] = static_cast<float>(j % 9);
    // A NaN that no lane sees, in either matrix.
    s[static_cast<std::size_t>(8 * pitch + j)] = dp[static_cast<std::size_t>(8 * pitch + j)] = NAN;
  }
  lse[0] = kInfinity;  // P is zero
  lse[1] = -1000;      // P is infinite
  const Aligned s_before = aligned(keys * pitch), dp_before = aligned(keys * pitch);
  std::copy_n(s.get(), keys * pitch, s_before.get());
  std::copy_n(dp.get(), keys * pitch, dp_before.get());
  const LaneLimits limits{begin.get(), end.get()};
  k_.softmax_backward(s.get(), dp.get(), keys, 2, pitch, &limits, lse.get(), delta.get());
  for (std::int64_t i = 0; i < keys; ++i)
    for (std::int64_t j = 0; j < width; ++j) {
      const auto lane = static_cast<std::size_t>(j), at = static_cast<std::size_t>(i * pitch + j);
      const bool seen = static_cast<float>(i) >= begin[lane] && static_cast<float>(i) < end[lane];
      double p = seen ? std::exp2(double{s_before[at]} - double{lse[lane]}) : 0.0;
      if (p > 3.5e38) p = static_cast<double>(kInfinity);
      const double ds = seen ? p * (double{dp_before[at]} - double{delta[lane]}) : 0.0;
      ASSERT_TRUE(s[at] == p || std::abs(s[at] - p) <= 1e-6 * p) << "key " << i << " lane " << j;
      ASSERT_TRUE(dp[at] == ds || std::abs(dp[at] - ds) <= 1e-5 * (1 + std::abs(ds)))
          << "key " << i << " lane " << j << ": " << dp[at] << ", expected " << ds;
    }
}

TEST_P(CpuKernels, DecodesEveryValueOfEveryFormat) {
  for (const DType dtype : kAllDTypes) {
    if (dtype == DType::f32) continue;
    const std::int64_t codes = is_8bit(dtype) ? 256 : 65536;
    std::vector<std::uint8_t> u8(256);
    std::vector<std::uint16_t> u16(65536);
    for (std::size_t i = 0; i < u8.size(); ++i) u8[i] = static_cast<std::uint8_t>(i);
    for (std::size_t i = 0; i < u16.size(); ++i) u16[i] = static_cast<std::uint16_t>(i);
    const void* source = is_8bit(dtype) ? static_cast<void*>(u8.data()) : u16.data();
    const Aligned row = aligned(codes);
    k_.to_f32(dtype, source, codes / 2, 2, codes / 2, row.get(), codes / 2);
    for (std::int64_t i = 0; i < codes; ++i) {
      const float expected = load_element(dtype, source, i),
                  found = row[static_cast<std::size_t>(i)];
      if (std::isnan(expected))
        ASSERT_TRUE(std::isnan(found)) << name(dtype) << ' ' << i;
      else
        ASSERT_EQ(std::bit_cast<std::uint32_t>(found), std::bit_cast<std::uint32_t>(expected))
            << name(dtype) << ' ' << i;
    }
  }
}

TEST_P(CpuKernels, DoesNotReadPastTheEndOfARow) {
  for (const DType dtype : kAllDTypes)
    for (std::int64_t n = 0; n < 70; ++n) {
      // Exactly n elements on the heap, so that the sanitizers detect a read beyond them.
      const std::size_t bytes = static_cast<std::size_t>(n) * size_bytes(dtype);
      const auto source = std::make_unique<std::uint8_t[]>(bytes);
      std::memset(source.get(), 0x35, bytes);
      const Aligned row = aligned(128, -7);
      k_.to_f32(dtype, source.get(), 0, 1, n, row.get(), 0);
      for (std::int64_t i = 0; i < n; ++i)
        ASSERT_EQ(row[static_cast<std::size_t>(i)], load_element(dtype, source.get(), i));
      if (is_8bit(dtype)) continue;
      const auto target = std::make_unique<std::uint8_t[]>(bytes);
      k_.from_f32(dtype, row.get(), n, target.get());
      ASSERT_EQ(std::memcmp(target.get(), source.get(), bytes), 0) << name(dtype) << ' ' << n;
    }
}

// Values at rounding boundaries: every 16-bit pattern of the upper half of a float, with lower
// halves around the ties of all formats.
std::vector<float> interesting_values() {
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 65536; ++high)
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x0FFFu, 0x1000u, 0x1001u, 0x2FFFu, 0x3000u,
                                    0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu})
      values.push_back(std::bit_cast<float>(high << 16 | low));
  return values;
}

TEST_P(CpuKernels, RoundsToEveryFormatLikeScalarCode) {
  const std::vector<float> values = interesting_values();
  const auto n = static_cast<std::int64_t>(values.size());
  const Aligned row = aligned(n + kRowPadding);
  for (const DType dtype : kAllDTypes) {
    std::copy(values.begin(), values.end(), row.get());
    k_.round_to(dtype, row.get(), n);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float x = values[i];
      const float expected = dtype == DType::f32    ? x
                             : dtype == DType::f16  ? f32_from_f16(f16_from_f32(x))
                             : dtype == DType::bf16 ? f32_from_bf16(bf16_from_f32(x))
                                                    : decode_8bit(dtype, encode_8bit(dtype, x));
      ASSERT_TRUE(row[i] == expected || (std::isnan(row[i]) && std::isnan(expected)))
          << name(dtype) << " of " << x << " is " << row[i] << ", expected " << expected;
    }
  }
}

TEST_P(CpuKernels, WritesEveryValueLikeScalarCode) {
  const std::vector<float> values = interesting_values();
  const auto n = static_cast<std::int64_t>(values.size());
  const Aligned row = aligned(n + kRowPadding);
  std::copy(values.begin(), values.end(), row.get());
  std::vector<std::uint16_t> target(values.size());
  for (const DType dtype : {DType::f16, DType::bf16}) {
    k_.from_f32(dtype, row.get(), n, target.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint16_t expected =
          dtype == DType::f16 ? f16_from_f32(values[i]) : bf16_from_f32(values[i]);
      if (std::isnan(values[i]))
        ASSERT_TRUE(std::isnan(load_element(dtype, &target[i], 0))) << name(dtype);
      else
        ASSERT_EQ(target[i], expected) << name(dtype) << " of " << values[i];
    }
  }
}

TEST_P(CpuKernels, CountsItsMultiplyAdds) {
  EXPECT_GT(k_.multiply_adds(1), 0.0);
  EXPECT_EQ(k_.multiply_adds(1000), 1000 * k_.multiply_adds(1));
}

}  // namespace
}  // namespace octavo::cpu
