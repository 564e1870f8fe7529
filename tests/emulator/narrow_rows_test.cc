// SPDX-License-Identifier: Apache-2.0
// Rows that allow only narrow loads, of so many heads that every partial maximum of the quantizers
// is used: the emulator quantizes them with a kernel of more columns.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "numeric/formats.h"
#include "numeric/random.h"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

struct NarrowOperand {
  static constexpr std::int64_t kHeads = 160, kRows = 3, kColumns = 64;
  std::int64_t stride;
  std::vector<std::uint16_t> bits;

  NarrowOperand(std::uint64_t stream, std::int64_t columns_apart)
      : stride(columns_apart), bits(static_cast<std::size_t>(kHeads * kRows * columns_apart)) {
    for (std::size_t i = 0; i < bits.size(); ++i)
      bits[i] = f16_from_f32(random_normal_value(5, stream, i));
  }
  Tensor tensor() {
    return {bits.data(),
            DType::f16,
            {1, kHeads, kRows, kColumns},
            {kHeads * kRows * stride, kRows * stride, stride, 1}};
  }
};

class NarrowRows : public testing::TestWithParam<Precision> {};

TEST_P(NarrowRows, OfManyHeadsAreQuantizedInsideTheWorkspace) {
  NarrowOperand q(0, 65), k(1, 65), v(2, 65), out(3, 64), expected(3, 64);
  Arguments arguments{.q = q.tensor(), .k = k.tensor(), .v = v.tensor(), .out = out.tensor()};
  const Options options{.precision = GetParam()};
  const Status status = attention(arguments, options, {Device::Kind::emulator, 0});
  ASSERT_TRUE(status.ok()) << status.message();
  arguments.out = expected.tensor();
  ASSERT_TRUE(attention(arguments, options, {Device::Kind::cpu, 0}).ok());
  for (std::size_t i = 0; i < out.bits.size(); ++i)
    ASSERT_NEAR(f32_from_f16(out.bits[i]), f32_from_f16(expected.bits[i]), 0.1f) << i;
}

INSTANTIATE_TEST_SUITE_P(Emulator, NarrowRows, testing::Values(Precision::fp8, Precision::int8),
                         [](const auto& p) { return std::string(name(p.param)); });

}  // namespace
}  // namespace octavo
