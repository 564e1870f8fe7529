// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <thread>
#include <vector>

#include "attention/call.h"
#include "octavo/emulator.hpp"

namespace octavo {
namespace {

using test::Call;

double worst_error(const Call& call, const Options& options = {}) {
  std::vector<double> truth(call.out.size());
  EXPECT_TRUE(reference(call.arguments, options, truth.data()).ok());
  return compare(call.arguments.out, truth.data()).max_abs;
}

TEST(Plan, RunsInTheWorkspaceItAsksFor) {
  Call call(2, 4, 2, 33, 70, 24);
  const Plan plan = octavo::plan(problem_of(call.arguments).value()).value();
  std::vector<std::byte> memory(plan.workspace_bytes());
  ASSERT_TRUE(plan.run(call.arguments, {memory.data(), memory.size()}).ok());
  EXPECT_LT(worst_error(call), 1e-5);
}

TEST(Plan, SmallWorkspaceIsRefusedAndNothingIsWritten) {
  Call call(1, 2, 2, 8, 8, 16);
  const Plan plan = octavo::plan(problem_of(call.arguments).value()).value();
  ASSERT_GT(plan.workspace_bytes(), 0u);
  std::vector<std::byte> memory(plan.workspace_bytes() - 1);
  const Status status = plan.run(call.arguments, {memory.data(), memory.size()});
  EXPECT_EQ(status.code(), ErrorCode::invalid_argument);
  EXPECT_NE(status.message().find("workspace is"), std::string::npos) << status.message();
  EXPECT_FALSE(plan.run(call.arguments).ok());
  EXPECT_TRUE(call.untouched());
}

TEST(Plan, ServesOtherLengthsOfItsProblem) {
  Call planned(1, 4, 2, 16, 16, 32);
  const Plan plan = octavo::plan(problem_of(planned.arguments).value()).value();
  Call longer(3, 2, 1, 100, 130, 32);
  std::vector<std::byte> memory(plan.workspace_bytes(longer.arguments));
  ASSERT_TRUE(plan.run(longer.arguments, {memory.data(), memory.size()}).ok());
  EXPECT_LT(worst_error(longer), 1e-5);
}

TEST(Plan, RefusesAProblemOfAnotherKind) {
  Call planned(1, 4, 2, 16, 16, 32);
  const Plan plan = octavo::plan(problem_of(planned.arguments).value()).value();
  Call other(1, 4, 2, 16, 16, 40);
  std::vector<std::byte> memory(plan.workspace_bytes(other.arguments));
  const Status status = plan.run(other.arguments, {memory.data(), memory.size()});
  EXPECT_NE(status.message().find("head_dim is 40"), std::string::npos) << status.message();
  EXPECT_TRUE(other.untouched());
}

TEST(Plan, RefusesAnotherLayoutOfV) {
  Call call(1, 1, 1, 4, 16, 16);
  const std::vector<std::uint8_t> codes(16 * 16, 0x38);
  const float one = 1;
  call.arguments.v = ConstTensor::bhsd(codes.data(), DType::e4m3, 1, 1, 16, 16);
  call.arguments.v_scales.data = &one;
  const Plan plan = octavo::plan(problem_of(call.arguments).value()).value();
  std::vector<std::byte> memory(plan.workspace_bytes());
  call.arguments.v_layout = VLayout::transposed;
  const Status status = plan.run(call.arguments, {memory.data(), memory.size()});
  EXPECT_EQ(status.message(),
            "v_layout is transposed; supported: rows, for which the plan was made.");
  EXPECT_TRUE(call.untouched());
}

TEST(Plan, RefusesLargerQuantizedValuesThanPlanned) {
  Call call(1, 1, 1, 4, 16, 16);
  const std::vector<std::uint8_t> codes(16 * 16, 0x38);
  const float one = 1;
  Arguments& a = call.arguments;
  a.k = ConstTensor::bhsd(codes.data(), DType::e4m3, 1, 1, 16, 16);
  a.k_scales.data = &one;
  a.k_scales.max_quantized = 30;
  const Plan plan = octavo::plan(problem_of(a).value()).value();
  EXPECT_EQ(plan.problem().k_max_quantized, 30.0f);
  std::vector<std::byte> memory(plan.workspace_bytes());
  const auto run = [&](float max_quantized) {
    a.k_scales.max_quantized = max_quantized;
    return plan.run(a, {memory.data(), memory.size()}).message();
  };
  EXPECT_EQ(run(31),
            "k_scales.max_quantized is 31; supported: 1 to 30, for which the plan was made.");
  EXPECT_EQ(run(0),
            "k_scales.max_quantized is 0; supported: 1 to 30, for which the plan was made.");
  EXPECT_TRUE(call.untouched());
  EXPECT_EQ(run(20), "");
  a.k_scales.max_quantized = 0;
  const Plan of_any = octavo::plan(problem_of(a).value()).value();
  EXPECT_TRUE(of_any.run(a, {memory.data(), memory.size()}).ok());
}

TEST(Plan, MissingDeviceIsRefusedWithAReason) {
  if (has_emulator()) GTEST_SKIP() << "this library has an emulator";
  Call call(1, 1, 1, 4, 4, 8);
  const auto made = octavo::plan(problem_of(call.arguments).value(), {Device::Kind::emulator, 0});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), ErrorCode::unsupported);
  EXPECT_NE(made.status().message().find("emulator ("), std::string::npos);
}

TEST(Plan, ExplainNamesKernelConfigAndReason) {
  Call call(1, 8, 8, 32, 32, 64);
  const Explanation e = explain(problem_of(call.arguments).value()).value();
  EXPECT_EQ(e.device, "cpu");
  EXPECT_EQ(e.kernel, "cpu_forward");
  EXPECT_FALSE(e.config.empty());
  EXPECT_FALSE(e.reason.empty());
  EXPECT_GT(e.workspace_bytes, 0u);
}

TEST(Attention, EmptyProblemsSucceedAndDoNothing) {
  for (const auto& [b, h, s] : {std::tuple{0, 2, 3}, {2, 0, 3}, {2, 2, 0}}) {
    Call call(b, h, h, s, 5, 8);
    EXPECT_TRUE(attention(call.arguments).ok());
  }
  Call no_keys(1, 2, 2, 3, 0, 8);
  EXPECT_TRUE(attention(no_keys.arguments).ok());
  for (const float x : no_keys.out) EXPECT_EQ(x, 0.0f);
  for (const float x : no_keys.lse) EXPECT_EQ(x, -INFINITY);
}

TEST(Attention, BadScalesOfEightBitInputsAreRefused) {
  Call call(1, 2, 1, 4, 6, 8);
  std::vector<std::uint8_t> codes(6 * 8, 1);
  std::vector<float> scales = {1, 1, 1, NAN, 1, 1};
  call.arguments.k = ConstTensor::bhsd(codes.data(), DType::int8, 1, 1, 6, 8);
  call.arguments.k_scales = {scales.data(), Granularity::row};
  EXPECT_EQ(attention(call.arguments).message(),
            "k_scales.data[3] is nan; supported: positive finite numbers.");
  scales[3] = 0;
  EXPECT_FALSE(attention(call.arguments).ok());
  EXPECT_TRUE(call.untouched());
  scales[3] = 1;
  EXPECT_TRUE(attention(call.arguments).ok());
}

TEST(Attention, ScalesOfTokensOfNoSequenceDoNotMatter) {
  Call call(1, 1, 1, 6, 6, 8);
  std::vector<std::uint8_t> codes(6 * 8, 1);
  std::vector<float> scales = {1, 1, 1, NAN, 1, 1};
  const std::int32_t cu[] = {0, 3, 3};
  call.arguments.k = ConstTensor::bhsd(codes.data(), DType::int8, 1, 1, 6, 8);
  call.arguments.k_scales = {scales.data(), Granularity::row};
  call.arguments.cu_seqlens_q = call.arguments.cu_seqlens_kv = cu;
  call.arguments.sequences = 2;
  call.arguments.max_seqlen_q = call.arguments.max_seqlen_kv = 6;
  EXPECT_TRUE(attention(call.arguments).ok());
  scales[2] = NAN;
  EXPECT_EQ(attention(call.arguments).message(),
            "k_scales.data[2] is nan; supported: positive finite numbers.");
}

TEST(Attention, ManyThreadsMayCallAtOnce) {
  constexpr int kThreads = 4;
  Call alone(1, 4, 2, 65, 90, 32);
  ASSERT_TRUE(attention(alone.arguments).ok());
  std::vector<std::thread> threads;
  std::vector<int> equal(kThreads, 0);
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&alone, &equal, t] {
      for (int repeat = 0; repeat < 5; ++repeat) {
        Call call(1, 4, 2, 65, 90, 32);
        if (attention(call.arguments).ok() && call.out == alone.out && call.lse == alone.lse)
          ++equal[static_cast<std::size_t>(t)];
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const int n : equal) EXPECT_EQ(n, 5);
}

}  // namespace
}  // namespace octavo
