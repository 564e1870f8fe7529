// P of INT8 on Hopper: its bytes where no exp unit makes them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "device/sm90/byte_codes.cuh"

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

}  // namespace
}  // namespace octavo
