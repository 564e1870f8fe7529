// SPDX-License-Identifier: Apache-2.0
// Softcap, bias, ALiBi, mask tensors, sinks and padded batches on the emulated sm80 kernels,
// against the fp64 reference.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "emulator/long.h"
#include "emulator/modified_call.h"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

using namespace modified;

constexpr Device kEmulator{Device::Kind::emulator, 0};

// BF16 takes the same steps as FP16 with other conversions, so it runs fewer combinations.
class EmulatedModifiers : public testing::TestWithParam<DType> {
 protected:
  static bool runs_all() { return GetParam() == DType::f16 || test_long(); }
};

TEST_P(EmulatedModifiers, EveryPairOfFeatures) {
  std::uint64_t number = 0;
  for (unsigned first = 1; first <= kPadded; first *= 2)
    for (unsigned second = first; second <= kPadded; second *= 2, ++number)
      if (runs_all() || first == second)
        Call(GetParam(), {}, first | second, number).check(kEmulator, tolerance_of(GetParam()));
}

TEST_P(EmulatedModifiers, AllFeaturesAtOnce) {
  for (std::uint64_t number = 0; number < 12; number += runs_all() ? 1 : 3)
    Call(GetParam(), {}, kEvery, number).check(kEmulator, tolerance_of(GetParam()));
}

// Several tiles of rows, several steps of keys, wide heads, rows that allow no wide load.
TEST_P(EmulatedModifiers, OtherShapes) {
  const Shape shapes[] = {{3, 2, 1, 70, 300, 64},
                          {3, 2, 2, 33, 150, 128},
                          {3, 1, 1, 1, 65, 64},
                          {3, 3, 1, 9, 40, 33},
                          {3, 2, 1, 20, 31, 100}};
  std::uint64_t number = 2;
  for (const Shape& shape : shapes)
    for (const unsigned features : {unsigned{kEvery}, unsigned{kPadded | kBias | kMask}}) {
      ++number;
      if (runs_all() || features == kEvery)
        Call(GetParam(), shape, features, number).check(kEmulator, tolerance_of(GetParam()));
    }
}

INSTANTIATE_TEST_SUITE_P(Inputs, EmulatedModifiers, testing::Values(DType::f16, DType::bf16),
                         [](const auto& p) { return std::string(name(p.param)); });

// Hopper's own kernel does not serve them yet, or does: the results are the same.
TEST(EmulatedModifiersOf, Sm90Chip) {
  Call call(DType::f16, {}, kEvery, 4);
  const Status status = attention(call.arguments(), call.options(), {Device::Kind::emulator, 90});
  ASSERT_TRUE(status.ok()) << status.message();
  call.check(kEmulator, tolerance_of(DType::f16));
}

// A negative scale changes signs before the softcap; a scale of 0 leaves bias and ALiBi.
TEST(EmulatedModifiersOf, ScalesOfEitherSign) {
  for (const float scale : {-0.3f, 0.0f, 2.0f}) {
    Call call(DType::f16, {}, kEvery, 6);
    call.arguments().scale = scale;
    call.check(kEmulator, tolerance_of(DType::f16));
  }
}

// tanh must keep its relative precision where its argument is small: a huge softcap changes
// nothing.
TEST(EmulatedModifiersOf, SoftcapsOfAnySize) {
  for (const float softcap : {1e-30f, 1e-3f, 100.0f, 1e4f, 1e7f, 1e30f, 3e38f}) {
    Call call(DType::f16, {}, kSoftcap, 0);
    call.options().softcap = softcap;
    call.check(kEmulator, tolerance_of(DType::f16), 2e-6);
  }
}

// The lowest float is finite, and is the LSE of a row that has nothing else: it hides a key beside
// others, but a row of nothing else is the mean of its values. -infinity everywhere is a row
// without keys; so is a masked one, except for a sink.
TEST(EmulatedModifiersOf, ExtremeBias) {
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  constexpr auto kInfinity = std::numeric_limits<float>::infinity();
  for (const DType out : {DType::f16, DType::bf16}) {
    Call call(out, {}, kBias, 12);  // f32 bias, no interval
    ASSERT_EQ(call.arguments().bias.dtype, DType::f32);
    Values& bias = call.bias();
    bias.fill([&](auto, auto, std::int64_t r, std::int64_t c) {
      if (r == 0) return kLowest;
      if (r == 1) return -kInfinity;
      if (r == 2) return c == 3 ? kLowest : -kInfinity;
      if (r == 3) return c == 5 ? kNan : 0.0f;
      if (r == 4) return c == 5 ? -kLowest : 0.0f;
      return c % 2 == 0 ? kLowest : 0.0f;
    });
    const Status status = attention(call.arguments(), call.options(), kEmulator);
    ASSERT_TRUE(status.ok()) << status.message();
    const Shape s;
    std::vector<double> wanted(static_cast<std::size_t>(s.batch * s.heads_q * s.rows * s.head_dim));
    ASSERT_TRUE(reference(call.arguments(), call.options(), wanted.data()).ok());
    EXPECT_EQ(call.lse().get(0, 0, 0, 0), kLowest);
    EXPECT_EQ(call.lse().get(0, 0, 1, 0), -kInfinity);
    EXPECT_EQ(call.lse().get(0, 0, 2, 0), kLowest);
    EXPECT_TRUE(std::isnan(call.lse().get(0, 0, 3, 0)));
    EXPECT_EQ(call.lse().get(0, 0, 4, 0), -kLowest);
    for (std::int64_t r = 0; r < 8; ++r)
      for (std::int64_t c = 0; c < s.head_dim; ++c) {
        const double x = wanted[static_cast<std::size_t>(r * s.head_dim + c)];
        if (r == 3)
          EXPECT_TRUE(std::isnan(call.out().get(0, 0, r, c))) << r;
        else
          EXPECT_NEAR(call.out().get(0, 0, r, c), x, tolerance_of(out)) << "row " << r;
      }
  }
}

TEST(EmulatedModifiersOf, SinksOfRowsWithoutKeys) {
  Call call(DType::f16, {}, kMask | kSinks, 0);
  call.sinks() = {0.5f, -std::numeric_limits<float>::infinity(), 80.0f, -80.0f};
  call.arguments().sinks = call.sinks().data();
  call.mask().fill([](auto, auto, std::int64_t r, auto) { return r % 2 == 0 ? 0.0f : 1.0f; });
  // With every key visible to some row, NaN in K would count.
  call.k().fill([](auto...) { return 0.25f; });
  call.check(kEmulator, tolerance_of(DType::f16));
  EXPECT_EQ(call.lse().get(0, 0, 0, 0), 0.5);
  EXPECT_EQ(call.lse().get(0, 1, 0, 0), -kInf);
  EXPECT_EQ(call.out().get(0, 0, 0, 0), 0.0);
}

TEST(EmulatedModifiersOf, EightBitInputs) {
  struct Format {
    DType dtype;
    Granularity scales;
    double tolerance;
  };
  for (const Format& f : {Format{DType::e4m3, Granularity::head, 0.12},
                          {DType::int8, Granularity::row, 0.03},
                          {DType::int8, Granularity::block, 0.03},
                          {DType::sim8, Granularity::head, 5e-3}})
    for (const unsigned features : {unsigned{kEvery - kPadded}, unsigned{kSinks}})
      for (const std::uint64_t number : {0u, 3u}) {
        Call call(DType::f16, {}, features, number);
        const QuantizedInputs quantized(call.arguments(), f.dtype, f.scales);
        call.check(kEmulator, f.tolerance, 1e-3);
      }
}

// 16-bit inputs that are quantized first: the scores are those of the quantized operands.
TEST(EmulatedModifiersOf, QuantizedPrecisions) {
  Call call(DType::f16, {}, kSoftcap | kAlibi | kSinks, 0);
  call.options().precision = Precision::fp8;
  Call native(DType::f16, {}, kSoftcap | kAlibi | kSinks, 0);
  ASSERT_TRUE(attention(native.arguments(), native.options(), kEmulator).ok());
  const Status status = attention(call.arguments(), call.options(), kEmulator);
  ASSERT_TRUE(status.ok()) << status.message();
  for (std::int64_t c = 0; c < 64; ++c)
    EXPECT_NEAR(call.out().get(0, 0, 0, c), native.out().get(0, 0, 0, c), 0.2);
}

}  // namespace
}  // namespace octavo
