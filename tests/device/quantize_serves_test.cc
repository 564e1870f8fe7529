// SPDX-License-Identifier: Apache-2.0
// The problems that the quantizers accept and refuse, the problem they leave to the forward kernel,
// and their workspace.
#include <gtest/gtest.h>

#include <functional>

#include "gpu/forward/sm80_forward.h"
#include "gpu/quantize/prepare_operands.h"

namespace octavo {
namespace {

Problem wide_problem(DType input, Precision precision) {
  Problem p;
  p.batch = 2;
  p.heads_q = p.heads_kv = 4;
  p.seqlen_q = p.seqlen_kv = 100;
  p.head_dim = p.head_dim_v = 64;
  p.q = p.k = p.v = input;
  p.options.precision = precision;
  return p;
}

TEST(QuantizeServes, EveryModeOfOneFormat) {
  struct Expected {
    Precision precision;
    DType element;
    Granularity q, k, v;
  };
  for (const DType input : {DType::f32, DType::f16, DType::bf16})
    for (const Expected& e : {Expected{Precision::fp8, DType::e4m3, Granularity::row,
                                       Granularity::head, Granularity::channel},
                              {Precision::fp8_fast, DType::e4m3, Granularity::row,
                               Granularity::head, Granularity::channel},
                              {Precision::int8, DType::int8, Granularity::row, Granularity::block,
                               Granularity::channel},
                              {Precision::sim8, DType::sim8, Granularity::head, Granularity::head,
                               Granularity::head}}) {
      const Problem p = wide_problem(input, e.precision);
      EXPECT_TRUE(resolve(p).ok()) << resolve(p).status().message();
      const Problem left = resolve(p)->kernel_problem;
      EXPECT_EQ(left.q, e.element);
      EXPECT_EQ(left.k, e.element);
      EXPECT_EQ(left.v, e.element);
      EXPECT_EQ(left.q_scales, e.q);
      EXPECT_EQ(left.k_scales, e.k);
      EXPECT_EQ(left.v_scales, e.v);
      // The forward kernel may rely on it: scores of such values fit FP16.
      EXPECT_EQ(left.q_max_quantized, e.element == DType::e4m3 ? 30.0f : 127.0f);
      EXPECT_EQ(left.k_max_quantized, left.q_max_quantized);
      EXPECT_EQ(left.options.precision, Precision::native);
      EXPECT_GT(resolve(p)->workspace_bytes, std::size_t{3 * 2 * 4 * 100 * 64});
    }
}

// Q and K are quantized, and a 16-bit V stays unchanged: for kernels of sm_90.
TEST(QuantizeServes, TheMixedModes) {
  for (const auto& [precision, element] :
       {std::pair{Precision::fp8_mixed, DType::e4m3}, {Precision::int8_mixed, DType::int8}})
    for (const DType input : {DType::f32, DType::f16, DType::bf16}) {
      const Problem p = wide_problem(input, precision);
      EXPECT_TRUE(resolve(p).ok()) << resolve(p).status().message();
      const Problem left = resolve(p)->kernel_problem;
      EXPECT_EQ(left.q, element);
      EXPECT_EQ(left.k, element);
      EXPECT_EQ(left.v, input == DType::f32 ? DType::f16 : input);
      const std::vector<QuantizeConfig> all = quantizers_of(*resolve(p), 90, 16);
      // K per head takes two passes.
      const std::size_t of_qk = precision == Precision::fp8_mixed ? 3 : 2;
      EXPECT_EQ(all.size(), of_qk + (input == DType::f32 ? 1 : 0));
      for (const QuantizeConfig& config : all) EXPECT_FALSE(config.operands || config.transposed);
      const Status refused = sm80_forward_supports(*resolve(p));
      EXPECT_EQ(refused.code(), ErrorCode::unsupported);
      EXPECT_EQ(refused.message().find("precision is " + std::string(name(precision)) + " for B=2"),
                0u)
          << refused.message();
    }
  EXPECT_TRUE(sm80_forward_supports(*resolve(wide_problem(DType::f16, Precision::int8))).ok());
}

// Inputs of several types become one type.
TEST(QuantizeServes, InputsOfSeveralTypesBecomeOneType) {
  Problem p = wide_problem(DType::f16, Precision::fp8);
  p.k = DType::bf16;
  p.v = DType::f32;
  EXPECT_TRUE(resolve(p).ok());
  EXPECT_EQ(quantizers_of(*resolve(p), 90, 16).size(), 5u);
  p.options.precision = Precision::native;
  EXPECT_FALSE(resolve(p).ok());
}

// The kernel that holds V also serves runs shorter than planned; two more kernels are loaded for
// longer runs or more heads of V.
TEST(QuantizeServes, OneLaunchIfAClusterHoldsV) {
  const auto kernels = [](std::int64_t batch, std::int64_t keys) {
    Problem p = wide_problem(DType::f16, Precision::fp8);
    p.batch = batch;
    p.seqlen_kv = keys;
    const std::vector<QuantizeConfig> all =
        quantizers_of(*resolve(p, nullptr, VLayout::transposed), 90, 16);
    EXPECT_TRUE(all.at(0).operands && all.at(0).one_pass);
    return all.size();
  };
  EXPECT_EQ(kernels(2, 1024), 1u);
  EXPECT_EQ(kernels(2, 1025), 3u);
  EXPECT_EQ(kernels(8, 1024), 1u);
  EXPECT_EQ(kernels(9, 1024), 3u);
  // It does not support these scales: the operands are quantized one after the other.
  Problem p = wide_problem(DType::f16, Precision::fp8);
  p.options.quantization.qk = Granularity::row;
  for (const QuantizeConfig& config :
       quantizers_of(*resolve(p, nullptr, VLayout::transposed), 90, 16))
    EXPECT_FALSE(config.operands);
}

TEST(QuantizeServes, NothingToDoNeedsNoWorkspace) {
  for (const DType input : {DType::f16, DType::bf16, DType::e4m3, DType::sim8}) {
    const Problem p = wide_problem(input, Precision::native);
    EXPECT_EQ(resolve(p)->workspace_bytes, 0u);
    EXPECT_TRUE(quantizers_of(*resolve(p), 90, 16).empty());
    EXPECT_EQ(resolve(p)->kernel_problem, p);
  }
}

TEST(QuantizeServes, RefusalsNameTheArgument) {
  const auto message = [](const std::function<void(Problem&)>& bend) {
    Problem p = wide_problem(DType::f16, Precision::fp8);
    bend(p);
    const Status status = resolve(p).status();
    EXPECT_EQ(status.code(), ErrorCode::unsupported);
    return status.message();
  };
  EXPECT_EQ(message([](Problem& p) {
              p.options.precision = Precision::native;
              p.q = DType::int8;
              p.k = DType::e4m3;
            }),
            "dtypes of q, k, v is int8, e4m3, f16; supported here: one dtype for all three on a "
            "GPU, or an f16 or bf16 q with 8-bit k and v; on sm_90 also e4m3, e5m2 or int8 q and k "
            "with an f16 or bf16 v, or one FP8 dtype for q and k and the other for v.");
  EXPECT_EQ(message([](Problem& p) { p.options.quantization.smooth_k = p.lse = true; }),
            "smooth_k is on with lse; supported here: off with lse on a GPU.");
  EXPECT_EQ(message([](Problem& p) { p.options.quantization.rule = ScaleRule::least_squares; }),
            "quantization.rule is least_squares; supported here: amax on a GPU.");
  EXPECT_EQ(message([](Problem& p) { p.options.quantization.qk = Granularity::channel; }),
            "quantization.qk is channel; supported here: tensor, head, block, row on a GPU.");
  EXPECT_EQ(message([](Problem& p) { p.options.quantization.v = Granularity::row; }),
            "quantization.v is row; supported here: tensor, head, channel on a GPU.");
}

// A smaller problem of the same plan needs no more than the plan's own workspace.
TEST(QuantizeServes, WorkspaceGrowsWithTheProblem) {
  for (const Granularity v : {Granularity::tensor, Granularity::head, Granularity::channel}) {
    Problem large = wide_problem(DType::f16, Precision::fp8);
    large.batch = 130;  // more than a first pass divides
    large.options.quantization.v = v;
    for (const std::int64_t batch : {1, 2, 64, 100, 128, 129})
      for (const std::int64_t length : {0, 1, 99, 100}) {
        Problem small = large;
        small.batch = batch;
        small.seqlen_q = small.seqlen_kv = length;
        EXPECT_LE(resolve(small)->workspace_bytes, resolve(large)->workspace_bytes);
      }
  }
}

}  // namespace
}  // namespace octavo
