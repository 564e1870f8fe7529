// SPDX-License-Identifier: Apache-2.0
// Bad input: every check reports a sentence that names the argument and its value.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "attention/call.h"
#include "attention/validate.h"

namespace octavo {
namespace {

using test::Call;

struct Fault {
  std::string words;  // the sentence must contain these
  std::function<void(Arguments&, Options&)> plant;
};

std::ostream& operator<<(std::ostream& out, const Fault& fault) { return out << fault.words; }

class BadInput : public testing::TestWithParam<Fault> {};

TEST_P(BadInput, IsRefusedByNameAndNothingIsWritten) {
  Call call(2, 4, 2, 6, 5, 8);
  Options options;
  ASSERT_TRUE(problem_of(call.arguments, options).ok());
  GetParam().plant(call.arguments, options);
  const Result<Problem> run_problem = problem_of(call.arguments, options);
  ASSERT_FALSE(run_problem.ok());
  EXPECT_EQ(run_problem.status().code(), ErrorCode::invalid_argument);
  EXPECT_NE(run_problem.status().message().find(GetParam().words), std::string::npos)
      << run_problem.status().message();
  EXPECT_NE(run_problem.status().message().find("supported"), std::string::npos);
  const Status status = attention(call.arguments, options);
  EXPECT_EQ(status.message(), run_problem.status().message());
  EXPECT_TRUE(call.untouched());
}

std::vector<Fault> faults() {
  using A = Arguments;
  using O = Options;
  return {
      {"q.data is null", [](A& a, O&) { a.q.data = nullptr; }},
      {"v.data is null", [](A& a, O&) { a.v.data = nullptr; }},
      {"out.data is null", [](A& a, O&) { a.out.data = nullptr; }},
      {"q.shape[2] is -1", [](A& a, O&) { a.q.shape[2] = -1; }},
      {"k.shape[0] is 4000000000", [](A& a, O&) { a.k.shape[0] = 4000000000; }},
      {"k.shape[0] is 3", [](A& a, O&) { a.k.shape[0] = 3; }},
      {"k.shape[3] is 7", [](A& a, O&) { a.k.shape[3] = 7; }},
      {"v.shape is (2, 2, 4, 8)", [](A& a, O&) { a.v.shape[2] = 4; }},
      {"v_layout is code 7",
       [](A& a, O&) {
         a.v_layout = static_cast<VLayout>(7);
         a.v.shape = {2, 2, 8, 16};
         a.v.stride = {256, 128, 16, 1};
       }},
      {"v_layout is transposed with v of f32",
       [](A& a, O&) {
         a.v_layout = VLayout::transposed;
         a.v.shape = {2, 2, 8, 16};
         a.v.stride = {256, 128, 16, 1};
       }},
      {"v.shape is (2, 2, 5, 8); supported: (2, 2, 8, 16)",
       [](A& a, O&) { a.v_layout = VLayout::transposed; }},
      {"v.shape is (1, 2, 10, 8); supported: (1, 2, 8, 48)",
       [](A& a, O&) {
         static constexpr std::int32_t kStarts[] = {0, 4, 10, 10};
         a.q.shape[0] = a.k.shape[0] = a.v.shape[0] = a.out.shape[0] = a.lse.shape[0] = 1;
         a.k.shape[2] = a.v.shape[2] = 10;
         a.cu_seqlens_q = a.cu_seqlens_kv = kStarts;
         a.sequences = 3;
         a.max_seqlen_q = a.max_seqlen_kv = 6;
         a.v_layout = VLayout::transposed;
       }},
      {"k_scales.max_quantized is 449; supported: 0 (not known) to 448, the largest of e4m3",
       [](A& a, O&) {
         a.k.dtype = DType::e4m3;
         a.k_scales.max_quantized = 449;
       }},
      {"q_scales.max_quantized is nan",
       [](A& a, O&) {
         a.q.dtype = DType::int8;
         a.q_scales.max_quantized = std::numeric_limits<float>::quiet_NaN();
       }},
      {"out.shape is (2, 4, 6, 4)", [](A& a, O&) { a.out.shape[3] = 4; }},
      {"out.shape is (2, 4, 6, 8); supported: (2, 4, 6, 7) (that of q, with the columns of v)",
       [](A& a, O&) { a.v.shape[3] = 7; }},
      {"head_dim_v is 0; supported: 1 to 2147483647",
       [](A& a, O&) { a.v.shape[3] = a.out.shape[3] = 0; }},
      {"lse.shape is (2, 4, 5, 1)", [](A& a, O&) { a.lse.shape[2] = 5; }},
      {"lse.dtype is f16", [](A& a, O&) { a.lse.dtype = DType::f16; }},
      {"heads_kv is 3", [](A& a, O&) { a.k.shape[1] = a.v.shape[1] = 3; }},
      {"heads_kv is 0", [](A& a, O&) { a.k.shape[1] = a.v.shape[1] = 0; }},
      {"head_dim is 0",
       [](A& a, O&) { a.q.shape[3] = a.k.shape[3] = a.v.shape[3] = a.out.shape[3] = 0; }},
      {"q.dtype is code 99", [](A& a, O&) { a.q.dtype = static_cast<DType>(99); }},
      {"out dtype is sim8; supported: f32, f16, bf16, e4m3, e5m2, int8.",
       [](A& a, O&) { a.out.dtype = DType::sim8; }},
      {"out_scales.data is null; supported: an array of scales, for an output of int8.",
       [](A& a, O&) { a.out.dtype = DType::int8; }},
      {"out_scales.granularity is row with out of e4m3; supported: tensor, head.",
       [](A& a, O&) {
         a.out.dtype = DType::e4m3;
         a.out_scales = {static_cast<const float*>(a.q.data), Granularity::row};
       }},
      {"out_scales.granularity is code 9 with out of e5m2; supported: tensor, head.",
       [](A& a, O&) {
         a.out.dtype = DType::e5m2;
         a.out_scales = {static_cast<const float*>(a.q.data), static_cast<Granularity>(9)};
       }},
      {"out_scales.stride is -1",
       [](A& a, O&) {
         a.out.dtype = DType::e4m3;
         a.out_scales = {static_cast<const float*>(a.q.data), Granularity::head, 64,
                         std::array<std::int64_t, 3>{-1, 1, 0}};
       }},
      {"out_amax.data is at address",
       [](A& a, O&) {
         static float amax[2];
         a.out_amax = reinterpret_cast<float*>(reinterpret_cast<char*>(amax) + 1);
       }},
      {"out_amax is in memory that k also covers",
       [](A& a, O&) { a.out_amax = static_cast<float*>(const_cast<void*>(a.k.data)) + 3; }},
      {"out_amax is in memory that out also covers",
       [](A& a, O&) { a.out_amax = static_cast<float*>(a.out.data) + 7; }},
      {"out_amax is in memory that lse also covers",
       [](A& a, O&) { a.out_amax = static_cast<float*>(a.lse.data); }},
      {"out_amax is in memory that out_scales also covers",
       [](A& a, O&) {
         static float scales[16];
         a.out.dtype = DType::e4m3;
         a.out_scales = {scales, Granularity::head};
         a.out_amax = scales + 7;
       }},
      {"q.stride[3] is 2", [](A& a, O&) { a.q.stride[3] = 2; }},
      {"k.stride[1] is -40", [](A& a, O&) { a.k.stride[1] = -40; }},
      {"q.stride is", [](A& a, O&) { a.q.stride[0] = INT64_MAX; }},
      {"out.stride[2] is 7", [](A& a, O&) { a.out.stride[2] = 7; }},
      {"out.stride[1] is 0", [](A& a, O&) { a.out.stride[1] = 0; }},
      {"lse.stride[2] is 0", [](A& a, O&) { a.lse.stride[2] = 0; }},
      {"out is in memory that q also covers",
       [](A& a, O&) { a.out.data = const_cast<void*>(a.q.data); }},
      {"out is in memory that v also covers",
       [](A& a, O&) { a.out.data = static_cast<float*>(const_cast<void*>(a.v.data)) + 3; }},
      {"lse is in memory that out also covers", [](A& a, O&) { a.lse.data = a.out.data; }},
      {"q.data is at address", [](A& a, O&) { a.q.data = static_cast<const char*>(a.q.data) + 1; }},
      {"scale is nan", [](A& a, O&) { a.scale = std::nanf(""); }},
      {"scale is inf", [](A& a, O&) { a.scale = std::numeric_limits<float>::infinity(); }},
      {"k_scales.data is null", [](A& a, O&) { a.k.dtype = DType::e4m3; }},
      {"cu_seqlens_kv is null",
       [](A& a, O&) {
         static constexpr std::int32_t kCu[] = {0, 6};
         a.cu_seqlens_q = kCu;
         a.sequences = 1;
       }},
      {"q.shape[0] is 2",
       [](A& a, O&) {
         static constexpr std::int32_t kCu[] = {0, 6};
         a.cu_seqlens_q = a.cu_seqlens_kv = kCu;
         a.sequences = 1;
       }},
      {"sequences is 3 without cu_seqlens", [](A& a, O&) { a.sequences = 3; }},
      {"window_left is -2", [](A&, O& o) { o.window_left = -2; }},
      {"window_right is -5", [](A&, O& o) { o.window_right = -5; }},
      {"causal is code 9", [](A&, O& o) { o.causal = static_cast<Causal>(9); }},
      {"precision is code 77", [](A&, O& o) { o.precision = static_cast<Precision>(77); }},
      {"smooth_k is on with precision native", [](A&, O& o) { o.quantization.smooth_k = true; }},
      {"hadamard is on with precision fp16",
       [](A&, O& o) {
         o.precision = Precision::fp16;
         o.quantization.hadamard = true;
       }},
      {"quantization.block_rows is 0", [](A&, O& o) { o.quantization.block_rows = 0; }},
      {"quantization.qk is code 9",
       [](A&, O& o) { o.quantization.qk = static_cast<Granularity>(9); }},
      {"quantization.rule is code 5",
       [](A&, O& o) { o.quantization.rule = static_cast<ScaleRule>(5); }},
  };
}

INSTANTIATE_TEST_SUITE_P(EveryCheck, BadInput, testing::ValuesIn(faults()));

TEST(Problem, DescribesTheArguments) {
  Call call(2, 4, 2, 6, 5, 8);
  const Problem p = problem_of(call.arguments).value();
  EXPECT_EQ(p.batch, 2);
  EXPECT_EQ(p.heads_q, 4);
  EXPECT_EQ(p.heads_kv, 2);
  EXPECT_EQ(p.seqlen_q, 6);
  EXPECT_EQ(p.seqlen_kv, 5);
  EXPECT_EQ(p.head_dim, 8);
  EXPECT_TRUE(p.lse);
  EXPECT_FALSE(p.varlen);
  EXPECT_EQ(describe(p), "B=2 Hq=4 Hkv=2 Sq=6 Skv=5 D=8 f32 lse");
}

TEST(Problem, VMayHaveOtherColumnsThanQ) {
  Call call(2, 4, 2, 6, 5, 8);
  const Problem equal = problem_of(call.arguments).value();
  EXPECT_EQ(equal.head_dim_v, 8);
  call.arguments.v.shape[3] = call.arguments.out.shape[3] = 3;
  const Problem p = problem_of(call.arguments).value();
  EXPECT_EQ(p.head_dim, 8);
  EXPECT_EQ(p.head_dim_v, 3);
  EXPECT_EQ(describe(p), "B=2 Hq=4 Hkv=2 Sq=6 Skv=5 D=8 Dv=3 f32 lse");
  EXPECT_EQ(validate_run(equal, p).message(),
            "head_dim_v is 3; supported: 8, for which the plan was made.");
}

TEST(Problem, TensorsMayInterleaveInOneArray) {
  constexpr std::int64_t kB = 2, kS = 3, kH = 2, kD = 8;
  std::vector<float> qkvo(kB * kS * 4 * kH * kD);
  Arguments a;
  const auto part = [&](int n) {
    return Tensor{qkvo.data() + n * kH * kD,
                  DType::f32,
                  {kB, kH, kS, kD},
                  {kS * 4 * kH * kD, kD, 4 * kH * kD, 1}};
  };
  a.q = part(0);
  a.k = part(1);
  a.v = part(2);
  a.out = part(3);
  EXPECT_TRUE(problem_of(a).ok()) << problem_of(a).status().message();
  a.out = part(2);
  EXPECT_FALSE(problem_of(a).ok());
  a.out = part(3);
  a.out.data = qkvo.data() + 2 * kH * kD + kD;  // half of V, half of O
  EXPECT_FALSE(problem_of(a).ok());
}

// Sums and products of the sizes of larger tensors could overflow.
TEST(Problem, LargerTensorsThanAnyMemoryAreRefused) {
  Problem p = problem_of(Call(2, 4, 2, 6, 5, 8).arguments).value();
  p.seqlen_q = p.batch = std::int64_t{1} << 26;
  p.heads_q = 8;  // with a head_dim of 8, 2^58 elements
  EXPECT_EQ(validate(p).message(), "");
  ++p.seqlen_q;
  EXPECT_NE(validate(p).message().find("supported: at most 2^58 elements in each tensor."),
            std::string::npos);
  std::swap(p.seqlen_q, p.seqlen_kv);
  p.heads_kv = 8;
  EXPECT_NE(validate(p).message().find("supported: at most 2^58 elements in each tensor."),
            std::string::npos);
}

TEST(Problem, BroadcastInputsAreAllowed) {
  Call call(2, 4, 2, 6, 5, 8);
  call.arguments.k.stride[0] = call.arguments.v.stride[0] = 0;
  EXPECT_TRUE(problem_of(call.arguments).ok());
}

TEST(Problem, RunMustMatchThePlannedProblemExceptForLengths) {
  Call call(2, 4, 2, 6, 5, 8);
  const Problem planned = problem_of(call.arguments).value();
  Problem run_problem = planned;
  run_problem.seqlen_q = 100;
  run_problem.batch = 7;
  EXPECT_TRUE(validate_run(planned, run_problem).ok());
  run_problem.q = DType::f16;
  EXPECT_NE(validate_run(planned, run_problem).message().find("q dtype is f16"), std::string::npos);
  run_problem = planned;
  run_problem.heads_q = 2;
  EXPECT_NE(validate_run(planned, run_problem).message().find("heads_q / heads_kv is 2 / 2"),
            std::string::npos);
  run_problem = planned;
  run_problem.lse = false;
  EXPECT_NE(validate_run(planned, run_problem).message().find("lse is absent"), std::string::npos);
}

}  // namespace
}  // namespace octavo
