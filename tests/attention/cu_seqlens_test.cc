// SPDX-License-Identifier: Apache-2.0
// Decreasing cu_seqlens would make sequences that share rows of the output: the host refuses what
// it can read.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "attention/call.h"
#include "attention/validate.h"
#include "octavo/emulator.hpp"

namespace octavo {
namespace {

// Three sequences over 16 tokens.
struct PackedCall : test::Call {
  std::vector<std::int32_t> cu_q{0, 10, 12, 16}, cu_kv{0, 4, 9, 16};
  PackedCall() : Call(1, 2, 2, 16, 16, 16) {
    arguments.cu_seqlens_q = cu_q.data();
    arguments.cu_seqlens_kv = cu_kv.data();
    arguments.sequences = 3;
    arguments.max_seqlen_q = arguments.max_seqlen_kv = 16;
  }
};

TEST(CuSeqlens, DecreasingEntriesAreRefusedAndNothingIsWritten) {
  PackedCall call;
  ASSERT_TRUE(attention(call.arguments).ok());
  std::fill(call.out.begin(), call.out.end(), -7.0f);
  std::fill(call.lse.begin(), call.lse.end(), -7.0f);
  call.cu_q = {0, 10, 5, 15};
  const Status status = attention(call.arguments);
  EXPECT_EQ(status.code(), ErrorCode::invalid_argument);
  EXPECT_NE(status.message().find("cu_seqlens_q[2] is 5"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("10 or more, the entry before it"), std::string::npos)
      << status.message();
  call.cu_q = {0, 10, 12, 16};
  call.cu_kv = {0, 4, 9, 8};
  EXPECT_NE(attention(call.arguments).message().find("cu_seqlens_kv[3] is 8"), std::string::npos);
  EXPECT_TRUE(call.untouched());
}

TEST(CuSeqlens, TheOracleRefusesThemToo) {
  PackedCall call;
  std::vector<double> out(2 * 16 * 16);
  call.arguments.lse = {};
  ASSERT_TRUE(reference(call.arguments, {}, out.data()).ok());
  call.cu_kv = {0, 4, 3, 16};
  EXPECT_EQ(reference(call.arguments, {}, out.data()).code(), ErrorCode::invalid_argument);
}

TEST(CuSeqlens, EntriesOutsideTheTensorAreClampedWhereTheyDoNotDecrease) {
  PackedCall call;
  call.cu_q = {-3, 10, 12, 40};
  call.cu_kv = {-1000000, 4, 2000000000, 2000000000};
  ASSERT_TRUE(attention(call.arguments).ok());
  const std::vector<float> clamped = call.out;
  call.cu_q = {0, 10, 12, 16};
  call.cu_kv = {0, 4, 16, 16};
  ASSERT_TRUE(attention(call.arguments).ok());
  EXPECT_EQ(call.out, clamped);
}

// As the host's array they are as good as the CPU's.
TEST(CuSeqlens, TheEmulatorRefusesThem) {
  if (!has_emulator()) GTEST_SKIP() << "built without the emulator";
  PackedCall call;
  std::vector<std::uint16_t> half(16 * 2 * 16, 0x3c00), out(half.size(), 0x1234);
  Arguments& a = call.arguments;
  a.q = a.k = a.v = Tensor::bhsd(half.data(), DType::f16, 1, 2, 16, 16);
  a.out = Tensor::bhsd(out.data(), DType::f16, 1, 2, 16, 16);
  call.cu_q = {0, 10, 5, 15};
  const Status status = attention(a, {}, Device{Device::Kind::emulator, 0});
  EXPECT_EQ(status.code(), ErrorCode::invalid_argument) << status.message();
  EXPECT_NE(status.message().find("cu_seqlens_q[2] is 5"), std::string::npos) << status.message();
  EXPECT_EQ(std::count(out.begin(), out.end(), 0x1234), static_cast<std::ptrdiff_t>(out.size()));
}

}  // namespace
}  // namespace octavo
