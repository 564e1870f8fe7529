// SPDX-License-Identifier: Apache-2.0
// Bad input of the backward pass: every check reports a sentence that names the argument and its
// value, and nothing is written.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "attention/backward_call.h"
#include "attention/validate.h"

namespace octavo {
namespace {

using test::BackwardCall;

struct BackwardFault {
  std::string words;  // the sentence must contain these
  std::function<void(BackwardArguments&, Options&)> plant;
  ErrorCode code = ErrorCode::invalid_argument;
};

std::ostream& operator<<(std::ostream& out, const BackwardFault& fault) {
  return out << fault.words;
}

class BadBackwardInput : public testing::TestWithParam<BackwardFault> {};

TEST_P(BadBackwardInput, IsRefusedByNameAndNothingIsWritten) {
  BackwardCall call(2, 4, 2, 6, 5, 8);
  Options options;
  ASSERT_TRUE(problem_of(call.arguments, options).ok());
  GetParam().plant(call.arguments, options);
  const Result<Problem> run_problem = problem_of(call.arguments, options);
  ASSERT_FALSE(run_problem.ok());
  EXPECT_EQ(run_problem.status().code(), GetParam().code);
  EXPECT_NE(run_problem.status().message().find(GetParam().words), std::string::npos)
      << run_problem.status().message();
  EXPECT_NE(run_problem.status().message().find("supported"), std::string::npos);
  const Status status = attention_backward(call.arguments, options);
  EXPECT_EQ(status.message(), run_problem.status().message());
  EXPECT_TRUE(call.untouched());
}

float spare[512];  // for tensors that a fault adds

std::vector<BackwardFault> backward_faults() {
  using A = BackwardArguments;
  using O = Options;
  const auto all_of = [](A& a, DType dtype) {
    for (ConstTensor* t : {&a.q, &a.k, &a.v, &a.out, &a.dout}) t->dtype = dtype;
    for (Tensor* t : {&a.dq, &a.dk, &a.dv}) t->dtype = dtype;
  };
  const ErrorCode unsupported = ErrorCode::unsupported;
  return {
      {"q.data is null", [](A& a, O&) { a.q.data = nullptr; }},
      {"out.data is null; supported: a pointer to the output of the forward pass",
       [](A& a, O&) { a.out = {}; }},
      {"lse.data is null; supported: a pointer to the lse of the forward pass",
       [](A& a, O&) { a.lse = {}; }},
      {"dout.data is null", [](A& a, O&) { a.dout.data = nullptr; }},
      {"dk.data is null", [](A& a, O&) { a.dk.data = nullptr; }},
      {"dout.shape is (2, 4, 5, 8); supported: (2, 4, 6, 8) (that of q)",
       [](A& a, O&) { a.dout.shape[2] = 5; }},
      {"dout.dtype is f16; supported: the dtype of q, here f32",
       [](A& a, O&) { a.dout.dtype = DType::f16; }},
      {"dq.shape is (2, 4, 6, 7)", [](A& a, O&) { a.dq.shape[3] = 7; }},
      {"dk.shape is (2, 1, 5, 8)", [](A& a, O&) { a.dk.shape[1] = 1; }},
      {"dv.dtype is bf16", [](A& a, O&) { a.dv.dtype = DType::bf16; }},
      {"lse.shape is (2, 4, 5, 1)", [](A& a, O&) { a.lse.shape[2] = 5; }},
      {"lse.dtype is f16", [](A& a, O&) { a.lse.dtype = DType::f16; }},
      {"out.shape is (2, 4, 3, 8)", [](A& a, O&) { a.out.shape[2] = 3; }},
      {"k dtype is f16", [](A& a, O&) { a.k.dtype = DType::f16; }, unsupported},
      {"out dtype is bf16", [](A& a, O&) { a.out.dtype = DType::bf16; }, unsupported},
      {"q dtype is e4m3; supported here: f32, f16 and bf16 in the backward pass",
       [all_of](A& a, O&) { all_of(a, DType::e4m3); }, unsupported},
      {"head_dim_v is 4; supported here: head_dim, here 8, in the backward pass",
       [](A& a, O&) {
         for (ConstTensor* t : {&a.v, &a.out, &a.dout}) t->shape[3] = 4;
         a.dv.shape[3] = 4;
       },
       unsupported},
      {"precision is fp8 with inputs of f32", [](A&, O& o) { o.precision = Precision::fp8; },
       unsupported},
      {"precision is fp16 with inputs of f32", [](A&, O& o) { o.precision = Precision::fp16; },
       unsupported},
      {"precision is bf16 with inputs of f16",
       [all_of](A& a, O& o) {
         all_of(a, DType::f16);
         o.precision = Precision::bf16;
       },
       unsupported},
      {"scale is nan", [](A& a, O&) { a.scale = std::numeric_limits<float>::quiet_NaN(); }},
      {"window_left is -3", [](A&, O& o) { o.window_left = -3; }},
      {"heads_kv is 3",
       [](A& a, O&) {
         for (ConstTensor* t : {&a.k, &a.v}) t->shape = {2, 3, 1, 8};
         for (Tensor* t : {&a.dk, &a.dv}) t->shape = {2, 3, 1, 8};
       }},
      {"cu_seqlens_kv is null",
       [](A& a, O&) {
         static const std::int32_t starts[] = {0, 6};
         a.cu_seqlens_q = starts;
         a.sequences = 1;
       }},
      {"dq is in memory that q also covers",
       [](A& a, O&) { a.dq.data = const_cast<void*>(a.q.data); }},
      {"dq is in memory that dout also covers",
       [](A& a, O&) { a.dq.data = const_cast<void*>(a.dout.data); }},
      {"dk is in memory that lse also covers",
       [](A& a, O&) { a.dk.data = const_cast<void*>(a.lse.data); }},
      {"dv is in memory that out also covers",
       [](A& a, O&) { a.dv.data = const_cast<void*>(a.out.data); }},
      {"dk is in memory that dq also covers", [](A& a, O&) { a.dk.data = a.dq.data; }},
      {"dv is in memory that dk also covers", [](A& a, O&) { a.dv.data = a.dk.data; }},
      {"dv is in memory that dq also covers", [](A& a, O&) { a.dv.data = a.dq.data; }},
      {"dk.stride[2] is 0", [](A& a, O&) { a.dk.stride[2] = 0; }},
      {"softcap is -1", [](A&, O& o) { o.softcap = -1; }},
      {"bias.shape is (2, 4, 6, 4); supported: (2, 4, 6, 5), each dimension that or 1",
       [](A& a, O&) { a.bias = ConstTensor::bhsd(spare, DType::f32, 2, 4, 6, 4); }},
      {"bias.dtype is int8",
       [](A& a, O&) { a.bias = ConstTensor::bhsd(spare, DType::int8, 1, 1, 6, 5); }},
      {"mask.dtype is f32",
       [](A& a, O&) { a.mask = ConstTensor::bhsd(spare, DType::f32, 1, 1, 6, 5); }},
      {"alibi_batch_stride is -1", [](A& a, O&) { a.alibi_batch_stride = -1; }},
      {"seqlens_q is given together with cu_seqlens",
       [](A& a, O&) {
         static const std::int32_t starts[] = {0, 6};
         for (ConstTensor* t : {&a.q, &a.k, &a.v, &a.out, &a.lse, &a.dout}) t->shape[0] = 1;
         for (Tensor* t : {&a.dq, &a.dk, &a.dv}) t->shape[0] = 1;
         a.cu_seqlens_q = a.cu_seqlens_kv = a.seqlens_q = starts;
         a.sequences = 1;
         a.max_seqlen_q = a.max_seqlen_kv = 6;
       }},
      {"dsinks is given without sinks", [](A& a, O&) { a.dsinks = spare; }},
      {"dbias is given without bias",
       [](A& a, O&) { a.dbias = Tensor::bhsd(spare, DType::f32, 1, 1, 6, 5); }},
      {"dbias.shape is (1, 1, 6, 5); supported: (1, 4, 6, 5) (that of bias)",
       [](A& a, O&) {
         a.bias = ConstTensor::bhsd(spare + 200, DType::f32, 1, 4, 6, 5);
         a.dbias = Tensor::bhsd(spare, DType::f32, 1, 1, 6, 5);
       }},
      {"dbias.dtype is f16; supported: f32, or the dtype of bias, here bf16",
       [](A& a, O&) {
         a.bias = ConstTensor::bhsd(spare + 200, DType::bf16, 1, 1, 6, 5);
         a.dbias = Tensor::bhsd(spare, DType::f16, 1, 1, 6, 5);
       }},
      {"dbias is in memory that bias also covers",
       [](A& a, O&) {
         a.bias = ConstTensor::bhsd(spare + 7, DType::f32, 1, 1, 6, 5);
         a.dbias = Tensor::bhsd(spare, DType::f32, 1, 1, 6, 5);
       }},
      {"dsinks is in memory that dbias also covers",
       [](A& a, O&) {
         a.bias = ConstTensor::bhsd(spare + 200, DType::f32, 1, 1, 6, 5);
         a.dbias = Tensor::bhsd(spare, DType::f32, 1, 1, 6, 5);
         a.sinks = spare + 300;
         a.dsinks = spare + 1;
       }},
      {"dsinks is in memory that sinks also covers", [](A& a, O&) { a.sinks = a.dsinks = spare; }},
      {"dq is in memory that mask also covers",
       [](A& a, O&) { a.mask = ConstTensor::bhsd(a.dq.data, DType::boolean, 1, 1, 6, 5); }},
  };
}

INSTANTIATE_TEST_SUITE_P(Faults, BadBackwardInput, testing::ValuesIn(backward_faults()));

TEST(BackwardProblem, EqualsTheForwardProblemWithLse) {
  BackwardCall call(2, 4, 2, 6, 5, 8);
  Options options;
  options.causal = Causal::bottom_right;
  const Problem forward = problem_of(call.forward.arguments, options).value();
  EXPECT_EQ(problem_of(call.arguments, options).value(), forward);
  EXPECT_TRUE(forward.lse);
  EXPECT_TRUE(validate_backward(forward).ok());
}

TEST(BackwardProblem, NeedsAPlanWithLseAndWithoutAmax) {
  BackwardCall call(1, 2, 2, 3, 3, 8);
  Problem problem = problem_of(call.arguments).value();
  problem.lse = false;
  EXPECT_EQ(plan_backward(problem).status().message(),
            "lse is absent; supported: given in the backward pass.");
  problem.lse = problem.out_amax = true;
  EXPECT_EQ(plan_backward(problem).status().message(),
            "out_amax is given; supported: absent in the backward pass.");
}

TEST(BackwardProblem, InputsMayRepeatAndPackedGradientsAreApart) {
  BackwardCall call(1, 2, 2, 6, 6, 8);
  call.arguments.dout.stride = {0, 0, 0, 1};
  EXPECT_TRUE(problem_of(call.arguments).ok());
  // The parts of one (batch, seqlen, 3, heads, head_dim) array.
  std::vector<float> packed(6 * 3 * 2 * 8);
  int part = 0;
  for (Tensor* t : {&call.arguments.dq, &call.arguments.dk, &call.arguments.dv})
    *t = {packed.data() + 16 * part++, DType::f32, {1, 2, 6, 8}, {288, 8, 48, 1}};
  EXPECT_EQ(problem_of(call.arguments).status().message(), "");
}

TEST(BackwardProblem, PrecisionOfTheDtypeIsNative) {
  for (const auto& [dtype, precision] :
       {std::pair{DType::f16, Precision::fp16}, {DType::bf16, Precision::bf16}}) {
    Problem p;
    p.batch = p.heads_q = p.heads_kv = p.seqlen_q = p.seqlen_kv = 1;
    p.head_dim = p.head_dim_v = 8;
    p.q = p.k = p.v = p.out = dtype;
    p.lse = true;
    p.options.precision = precision;
    EXPECT_EQ(validate_backward(p).message(), "");
  }
}

}  // namespace
}  // namespace octavo
