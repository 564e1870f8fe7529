// SPDX-License-Identifier: Apache-2.0
// Edge cases of FP8 weights on Hopper: far below the largest, and NaN.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <memory>

#include "numeric/formats.h"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

constexpr Device kSm90{Device::Kind::emulator, 90};

// A head of FP8 from 16 bits, whose queries and keys have one nonzero column.
struct OneColumn {
  static constexpr std::int64_t kRows = 64, kKeys = 512, kColumns = 64;
  struct alignas(16) Operand {
    std::array<std::uint16_t, kKeys * kColumns> bits{};
    float operator[](std::int64_t n) const {
      return static_cast<float>(load_element(DType::f16, bits.data(), n));
    }
  };
  std::unique_ptr<std::array<Operand, 4>> operands = std::make_unique<std::array<Operand, 4>>();
  Operand& q() { return (*operands)[0]; }
  Operand& k() { return (*operands)[1]; }
  Operand& v() { return (*operands)[2]; }
  Operand& out() { return (*operands)[3]; }

  Status run() {
    const auto tensor = [](Operand& x, std::int64_t rows) {
      return Tensor::bhsd(x.bits.data(), DType::f16, 1, 1, rows, kColumns);
    };
    Arguments a;
    a.q = tensor(q(), kRows);
    a.k = tensor(k(), kKeys);
    a.v = tensor(v(), kKeys);
    a.out = tensor(out(), kRows);
    Options options;
    options.precision = Precision::fp8;
    return attention(a, options, kSm90);
  }
};

// One key far above all others. With its own P at 256 of 448, theirs are subnormal from 9.7 on, and
// a polynomial alone cannot produce those.
TEST(EmulatorSm90, SmallWeightsSurviveNextToOneLargeWeight) {
  OneColumn x;
  for (const double above : {6.0, 9.2, 10.4, 11.1}) {
    const auto root = static_cast<float>(std::sqrt(8 * above));
    for (const std::int64_t sink : {0, 200}) {
      x.k().bits.fill(0);
      x.k().bits[static_cast<std::size_t>(sink * x.kColumns)] = f16_from_f32(root);
      x.v().bits.fill(f16_from_f32(1));
      for (std::int64_t c = 0; c < x.kColumns; ++c)
        x.v().bits[static_cast<std::size_t>(sink * x.kColumns + c)] = 0;
      for (std::int64_t row = 0; row < x.kRows; ++row)
        x.q().bits[static_cast<std::size_t>(row * x.kColumns)] = f16_from_f32(root);
      const Status status = x.run();
      ASSERT_TRUE(status.ok()) << status.message();
      const double others = x.kKeys - 1;
      const double expected = others / (others + std::exp(above));
      for (std::int64_t n = 0; n < x.kRows * x.kColumns; ++n)
        ASSERT_NEAR(x.out()[n] / expected, 1.0, 0.08)
            << above << " above, sink " << sink << ", " << n;
    }
  }
}

// Rows with and without such a key, in the same warp.
TEST(EmulatorSm90, RowBitsDoNotDependOnALargeKeyOfOtherRows) {
  OneColumn x;
  for (std::size_t n = 0; n < x.k().bits.size(); ++n) {
    x.k().bits[n] = n % x.kColumns == 0 ? f16_from_f32(0.01f * static_cast<float>(n % 97)) : 0;
    x.v().bits[n] = f16_from_f32(0.02f * static_cast<float>(n % 101));
  }
  x.k().bits[0] = f16_from_f32(9);
  const auto fill = [&](float odd_rows) {
    for (std::int64_t row = 0; row < x.kRows; ++row)
      x.q().bits[static_cast<std::size_t>(row * x.kColumns)] =
          f16_from_f32(row % 2 == 0 ? 0.5f : odd_rows);
  };
  fill(0.5f);
  ASSERT_TRUE(x.run().ok());
  const auto alike = x.out().bits;
  fill(9.0f);
  ASSERT_TRUE(x.run().ok());
  for (std::size_t n = 0; n < static_cast<std::size_t>(x.kRows * x.kColumns); ++n) {
    if (n / x.kColumns % 2 == 0) {
      ASSERT_EQ(x.out().bits[n], alike[n]) << n;
    }
  }
}

// Holds for P from the exp unit and from the polynomial.
TEST(EmulatorSm90, NanKeyReachesAllRows) {
  OneColumn x;
  x.q().bits.fill(f16_from_f32(0.1f));
  x.v().bits.fill(f16_from_f32(1));
  for (const std::int64_t key : {3, 20, 40, 60, 300}) {
    x.k().bits.fill(f16_from_f32(0.1f));
    x.k().bits[static_cast<std::size_t>(key * x.kColumns)] = 0x7e00;
    const Status status = x.run();
    ASSERT_TRUE(status.ok()) << status.message();
    for (std::int64_t n = 0; n < x.kRows * x.kColumns; ++n)
      ASSERT_TRUE(std::isnan(x.out()[n])) << "key " << key << ", " << n;
  }
}

}  // namespace
}  // namespace octavo
