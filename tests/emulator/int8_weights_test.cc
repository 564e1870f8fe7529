// SPDX-License-Identifier: Apache-2.0
// P in INT8 on Hopper: the polynomial that computes its 8-bit values, and their reference maximum.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <vector>

#include "device/sm90/numerics/int8.cuh"
#include "evidence/cases/emulated_cases.h"
#include "gpu/jit/config_text.h"
#include "numeric/formats.h"
#include "numeric/random.h"
#include "octavo/emulator.hpp"
#include "octavo/evidence.hpp"
#include "runtime/emulated/emulated_launch.h"

namespace octavo {
namespace {

constexpr Sm90ForwardConfig kInt8{.element = Element::int8,
                                  .v_element = Element::int8,
                                  .k_scales = KScales::block,
                                  .warpgroups = 2,
                                  .schedule = Schedule::pv_first,
                                  .pv_columns = 64};
using Numerics = sm90::NumericsInt8<sm90::Geometry<sm90::ConfigOf<kInt8>>>;

// Checks both halves of a pair, whatever bits are above the 8-bit values.
int byte_of(float t) {
  const u32 pair = Numerics::polynomial(t, t);
  EXPECT_EQ(pair & 0xff, pair >> 16 & 0xff);
  return static_cast<int>(pair & 0xff);
}

TEST(EmulatorSm90, PolynomialValueIsWithinOneOfTheNearest) {
  int before = 255, steps = 0;
  double squares = 0;
  for (float x = 0; x > -12; x -= 1e-4f, ++steps) {
    const int byte = byte_of(ptx::fma_sat_f32(x, 1 / Numerics::kReach, 1.0f));
    const double exact = 255 * std::exp2(static_cast<double>(x));
    ASSERT_LE(std::abs(byte - static_cast<int>(std::lround(exact))), 1) << x;
    ASSERT_LE(byte, before) << x;
    before = byte;
    squares += (byte - exact) * (byte - exact);
  }
  EXPECT_LT(std::sqrt(squares / steps), 0.31);
}

TEST(EmulatorSm90, PolynomialGivesZeroForMaskedKeys) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float x : {-kInfinity, -1e30f, -100.0f, -Numerics::kReach})
    EXPECT_EQ(byte_of(ptx::fma_sat_f32(x, 1 / Numerics::kReach, 1.0f)), 0) << x;
  EXPECT_EQ(byte_of(ptx::fma_sat_f32(1e-3f, 1 / Numerics::kReach, 1.0f)), 255);
}

// One head with as many queries as keys, run by every INT8 kernel of the list with a scale per
// block of K.
class Int8Head {
 public:
  static constexpr std::int64_t kKeys = 320, kColumns = 64;

  Int8Head() {
    arguments_.q = operands_->at(0).tensor();
    arguments_.k = operands_->at(1).tensor();
    arguments_.v = operands_->at(2).tensor();
    arguments_.out = operands_->at(3).tensor();
    for (std::size_t n = 0; n < kKeys * kColumns; ++n)
      operands_->at(2).bits[n] = f16_from_f32(random_normal_value(6, 2, n));
  }
  // Sets a row's first column, the only one that is not 0.
  void set_q(std::int64_t row, float x) { operands_->at(0).set(row, x); }
  void set_k(std::int64_t row, float x) { operands_->at(1).set(row, x); }
  // Sets a column of all keys.
  void set_v(std::int64_t column, float x) {
    for (std::int64_t row = 0; row < kKeys; ++row) operands_->at(2).set(row, x, column);
  }

  // Expects O within `tolerance` of fp64 attention, and exactly `exact` in the first columns.
  void check(Options options, double tolerance, const char* what,
             const std::vector<double>& exact = {}) {
    options.precision = Precision::int8;
    const Result<Problem> run_problem = problem_of(arguments_, options);
    ASSERT_TRUE(run_problem.ok()) << run_problem.status().message();
    std::vector<double> expected(kKeys * kColumns);
    ASSERT_TRUE(reference(arguments_, options, expected.data()).ok());
    int kernels = 0;
    for (const emulator::EmulatedSm90Forward& kernel : emulator::sm90_forward_kernels()) {
      const Sm90ForwardConfig& c = kernel.config;
      if (!sm90::is_int8_pv(c) || c.k_scales != KScales::block ||
          c.output.element != Element::f16 || c.head_dim != kColumns || c.pack_gqa ||
          c.output.amax || any(c.modifiers))
        continue;
      ++kernels;
      std::vector<std::byte> memory;
      const Result<Arguments> given = with_operands_for(c, *run_problem, arguments_, memory);
      ASSERT_TRUE(given.ok()) << given.status().message();
      auto& out = operands_->at(3).bits;
      out.fill(f16_from_f32(99));
      const Status status = run_emulated(kernel, evidence::narrow_sm90_chip(), *run_problem, *given,
                                         {}, [](const emulator::Machine&) {});
      ASSERT_TRUE(status.ok()) << status.message();
      int wrong = 0;  // or NaN
      for (std::size_t n = 0; n < expected.size(); ++n) {
        const double got = load_element(DType::f16, out.data(), static_cast<std::int64_t>(n));
        const std::size_t column = n % kColumns;
        if (column < exact.size() ? got != exact[column]
                                  : !(std::abs(got - expected[n]) <= tolerance))
          ++wrong;
      }
      EXPECT_EQ(wrong, 0) << brief_text(c) << ", " << what;
    }
    EXPECT_GE(kernels, 6);  // at least the rows of a table
  }

 private:
  struct alignas(16) Operand {
    std::array<std::uint16_t, kKeys * kColumns> bits{};
    Tensor tensor() { return Tensor::bhsd(bits.data(), DType::f16, 1, 1, kKeys, kColumns); }
    void set(std::int64_t row, float x, std::int64_t column = 0) {
      bits[static_cast<std::size_t>(row * kColumns + column)] = f16_from_f32(x);
    }
  };
  std::unique_ptr<std::array<Operand, 4>> operands_ = std::make_unique<std::array<Operand, 4>>();
  Arguments arguments_;
};

// The 8-bit values of P are relative to the largest key that is seen: ten powers of two below a
// hidden one, before or behind it, they would all be 0.
TEST(EmulatorSm90, Int8WeightsAreRelativeToTheLargestVisibleKey) {
  Int8Head head;
  for (const bool hides_later : {true, false}) {
    for (std::int64_t row = 0; row < Int8Head::kKeys; ++row) {
      head.set_q(row, 4);
      // 64 equal keys, and the next 64 above or below them by 7.5.
      head.set_k(row, static_cast<float>(hides_later ? row / 64 : -(row / 64)) * 15);
    }
    Options options;
    if (hides_later)
      options.causal = Causal::top_left;
    else
      options.window_left = 20;
    // Each of 64 keys so far below one weighs less than half a step.
    head.check(options, 0.15, hides_later ? "causal" : "window");
  }
}

// Scores are offset by a bias of 1.5 * 2^23, and a unit of them is 2^-12 to 2^11 powers of two
// here. Rounded to a float, the product of the two has an error larger than the difference between
// any keys.
TEST(EmulatorSm90, Int8WeightsDoNotDependOnTheScoreUnit) {
  Int8Head head;
  for (const float unit : {0x1p-10f, 0x1p-7f, 0x1p-4f, 0x1p2f, 0x1p14f}) {
    for (std::int64_t row = 0; row < Int8Head::kKeys; ++row) {
      // All are whole quantized values: each block of K has a 127, and the next keys are 1 below
      // it.
      head.set_q(row, 127 * (unit > 1 ? 512.0f : 1.0f));
      head.set_k(row, static_cast<float>(127 - row % 64) * (unit > 1 ? unit / 512 : unit));
    }
    head.check({}, 0.03, "a unit");
    if (HasFatalFailure()) return;
  }
}

// The 8-bit values of V are offset by 128, and their weighted sum is stored in a float's bits. The
// sum is largest if all keys have the same weight and all V is 127. Zeros must give exactly zero,
// with any weights.
TEST(EmulatorSm90, SumsOfInt8ProductsAreExact) {
  Int8Head head;
  head.set_v(0, 0);
  head.set_v(1, 127);
  head.set_v(2, -127);
  for (const bool alike : {true, false}) {
    for (std::int64_t row = 0; row < Int8Head::kKeys && !alike; ++row) {
      head.set_q(row, random_normal_value(6, 0, static_cast<std::size_t>(row)) * 8);
      head.set_k(row, random_normal_value(6, 1, static_cast<std::size_t>(row)) * 4);
    }
    head.check({}, 0.05, alike ? "keys alike" : "keys that differ", {0, 127, -127});
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace octavo
