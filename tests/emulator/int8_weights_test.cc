// P of INT8 on Hopper: its bytes where no exp unit makes them, and what they count from.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <vector>

#include "device/sm90/byte_codes.cuh"
#include "evidence/emulated_cases.h"
#include "gpu/config_text.h"
#include "numeric/formats.h"
#include "numeric/random.h"
#include "octavo/emulator.hpp"
#include "runtime/emulated_launch.h"

namespace octavo {
namespace {

constexpr Sm90Forward kInt8{.element = Element::int8,
                            .warpgroups = 2,
                            .overlap = false,
                            .own_o = false,
                            .fold_columns = 64,
                            .k_block_scales = true};
using Codes = sm90::ByteCodes<sm90::Geometry<sm90::ConfigOf<kInt8>>>;

// Of both halves of a pair, whatever stands above the bytes.
int byte_of(float t) {
  const u32 pair = Codes::polynomial(t, t);
  EXPECT_EQ(pair & 0xff, pair >> 16 & 0xff);
  return static_cast<int>(pair & 0xff);
}

TEST(EmulatorSm90, AByteByThePolynomialIsTheNearestOrOneBesideIt) {
  int before = 255, steps = 0;
  double squares = 0;
  for (float x = 0; x > -12; x -= 1e-4f, ++steps) {
    const int byte = byte_of(ptx::fma_sat_f32(x, 1 / Codes::kReach, 1.0f));
    const double exact = 255 * std::exp2(static_cast<double>(x));
    ASSERT_LE(std::abs(byte - static_cast<int>(std::lround(exact))), 1) << x;
    ASSERT_LE(byte, before) << x;
    before = byte;
    squares += (byte - exact) * (byte - exact);
  }
  EXPECT_LT(std::sqrt(squares / steps), 0.31);
}

TEST(EmulatorSm90, ThePolynomialLeavesNothingOfKeysThatAreNotSeen) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float x : {-kInfinity, -1e30f, -100.0f, -Codes::kReach})
    EXPECT_EQ(byte_of(ptx::fma_sat_f32(x, 1 / Codes::kReach, 1.0f)), 0) << x;
  EXPECT_EQ(byte_of(ptx::fma_sat_f32(1e-3f, 1 / Codes::kReach, 1.0f)), 255);
}

// P's bytes count from the largest key that is seen: ten powers of two below one that is hidden,
// before or behind it, they would all be 0.
TEST(EmulatorSm90, BytesCountFromTheLargestKeyThatIsSeen) {
  constexpr std::int64_t kKeys = 320, kColumns = 64;
  struct alignas(16) Operand {
    std::array<std::uint16_t, kKeys * kColumns> bits{};
    Tensor tensor() { return Tensor::bhsd(bits.data(), DType::f16, 1, 1, kKeys, kColumns); }
  };
  const auto made = std::make_unique<std::array<Operand, 4>>();
  auto& [q, k, v, out] = *made;
  Arguments a;
  a.q = q.tensor();
  a.k = k.tensor();
  a.v = v.tensor();
  a.out = out.tensor();
  int kernels = 0;
  for (const bool hides_later : {true, false}) {
    for (std::int64_t row = 0; row < kKeys; ++row) {
      const auto n = static_cast<std::size_t>(row * kColumns);
      q.bits[n] = f16_from_f32(4);
      // 64 keys alike, and the next 64 above or below them by 7.5.
      k.bits[n] = f16_from_f32(static_cast<float>(hides_later ? row / 64 : -(row / 64)) * 15);
      for (std::size_t c = 0; c < kColumns; ++c)
        v.bits[n + c] = f16_from_f32(random_normal_value(6, 2, n + c));
    }
    Options options;
    options.precision = Precision::int8;
    if (hides_later)
      options.causal = Causal::top_left;
    else
      options.window_left = 20;
    const Result<Problem> posed = problem_of(a, options);
    ASSERT_TRUE(posed.ok()) << posed.status().message();
    std::vector<double> expected(kKeys * kColumns);
    ASSERT_TRUE(reference(a, options, expected.data()).ok());
    for (const emulator::EmulatedSm90Forward& kernel : emulator::sm90_forward_kernels()) {
      const Sm90Forward& c = kernel.config;
      if (!sm90::bytes_pv(c) || !c.k_block_scales || c.out != Element::f16 ||
          c.head_dim != kColumns || c.pack_heads || c.amax || c.early_start)
        continue;
      ++kernels;
      std::vector<std::byte> memory;
      const Result<Arguments> given = with_operands_for(c, *posed, a, memory);
      ASSERT_TRUE(given.ok()) << given.status().message();
      out.bits.fill(f16_from_f32(99));
      const Status status = run_emulated(kernel, evidence::narrow_sm90_chip(), *posed, *given, {},
                                         [](const emulator::Machine&) {});
      ASSERT_TRUE(status.ok()) << status.message();
      int wrong = 0;  // or not a number
      for (std::size_t n = 0; n < expected.size(); ++n) {
        const double got = load_element(DType::f16, out.bits.data(), static_cast<std::int64_t>(n));
        // What 64 keys so far below one weigh is less than half a step, for each of them.
        if (!(std::abs(got - expected[n]) <= 0.15)) ++wrong;
      }
      EXPECT_EQ(wrong, 0) << brief_text(c) << (hides_later ? ", causal" : ", window");
    }
  }
  EXPECT_GE(kernels, 2 * 6);  // a table's rows at least
}

}  // namespace
}  // namespace octavo
