// SPDX-License-Identifier: Apache-2.0
// Keys with a mean, quantized to 8 bits on GPUs: the accuracy of smooth_k, and where it is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <vector>

#include "numeric/formats.h"
#include "numeric/random.h"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

struct SmoothKeysCall {
  static constexpr std::int64_t kRows = 70, kKeys = 150, kColumns = 64;

  // f16, at an alignment that every kernel accepts.
  struct Operand {
    struct alignas(16) Eight {
      std::uint16_t bits[8];
    };
    std::vector<Eight> memory;
    Operand(std::int64_t rows, std::uint64_t stream, float mean)
        : memory(static_cast<std::size_t>(rows * kColumns / 8)) {
      for (std::int64_t n = 0; n < rows * kColumns; ++n)
        at(n) = f16_from_f32(random_normal_value(3, stream, static_cast<std::uint64_t>(n)) +
                             mean * static_cast<float>(n % kColumns % 3));
    }
    std::uint16_t& at(std::int64_t n) {
      return memory[static_cast<std::size_t>(n / 8)].bits[static_cast<std::size_t>(n % 8)];
    }
    Tensor tensor(std::int64_t rows) {
      return Tensor::bhsd(memory.data(), DType::f16, 1, 1, rows, kColumns);
    }
  };

  Operand q{kRows, 0, 0}, k{kKeys, 1, 10}, v{kKeys, 2, 0}, out{kRows, 3, 0};
  std::vector<float> lse = std::vector<float>(kRows);
  Arguments arguments{
      .q = q.tensor(kRows), .k = k.tensor(kKeys), .v = v.tensor(kKeys), .out = out.tensor(kRows)};

  std::vector<float> run(Precision precision, bool smooth, Device device) {
    Options options;
    options.precision = precision;
    options.quantization.smooth_k = smooth;
    const Status status = attention(arguments, options, device);
    EXPECT_TRUE(status.ok()) << status.message();
    std::vector<float> values;
    for (std::int64_t n = 0; n < kRows * kColumns; ++n) values.push_back(f32_from_f16(out.at(n)));
    return values;
  }
};

// Root mean square, because the largest difference is a matter of chance.
float difference(const std::vector<float>& a, const std::vector<float>& b) {
  float squares = 0;
  for (std::size_t n = 0; n < a.size(); ++n) squares += (a[n] - b[n]) * (a[n] - b[n]);
  return std::sqrt(squares / static_cast<float>(a.size()));
}

class SmoothKeys : public testing::TestWithParam<int> {
 protected:
  Device device() const { return {Device::Kind::emulator, GetParam()}; }
};

// Scales that include a mean of 10 and 20 leave few steps for the keys; without it they are as
// accurate as the CPU's, which quantizes them the same way.
TEST_P(SmoothKeys, AreAsAccurateAsOnTheCpu) {
  for (const Precision precision : {Precision::fp8, Precision::int8}) {
    SmoothKeysCall call;
    const Device cpu{Device::Kind::cpu, 0};
    const std::vector<float> exact = call.run(Precision::fp16, false, cpu);
    const float plain = difference(call.run(precision, false, device()), exact);
    const float smooth = difference(call.run(precision, true, device()), exact);
    const float of_cpu = difference(call.run(precision, true, cpu), exact);
    EXPECT_LT(smooth, plain / 3) << name(precision);
    EXPECT_LT(smooth, 1.25f * of_cpu) << name(precision);
  }
}

TEST_P(SmoothKeys, AreRefusedWithLse) {
  SmoothKeysCall call;
  call.arguments.lse = Tensor::bhsd(call.lse.data(), DType::f32, 1, 1, call.kRows, 1);
  Options options;
  options.precision = Precision::fp8;
  options.quantization.smooth_k = true;
  const std::vector<float> before = call.lse;
  const Status status = attention(call.arguments, options, device());
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("smooth_k is on with lse"), std::string::npos)
      << status.message();
  EXPECT_EQ(call.lse, before);
}

INSTANTIATE_TEST_SUITE_P(Chips, SmoothKeys, testing::Values(0, 90));

}  // namespace
}  // namespace octavo
