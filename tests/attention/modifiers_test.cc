// SPDX-License-Identifier: Apache-2.0
// Padding, softcap, bias, ALiBi, mask tensors and sinks: each error sentence, and the oracle by
// hand and against calls without them.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "attention/call.h"
#include "attention/reference.h"
#include "attention/validate.h"

namespace octavo {
namespace {

using test::Call;

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

// ---------------------------------------------------------------------------------------------
// Validation

// Batch 2, 4 heads, 6 queries, 5 keys.
struct Modified : Call {
  std::vector<float> bias = std::vector<float>(2 * 4 * 6 * 5);
  std::vector<std::uint8_t> mask = std::vector<std::uint8_t>(2 * 4 * 6 * 5, 1);
  std::vector<float> slopes = std::vector<float>(8, 0.5f), sinks = std::vector<float>(4, 1.0f);
  std::vector<std::int32_t> seqlens = {3, 5};

  Modified() : Call(2, 4, 2, 6, 5, 8) {
    arguments.bias = ConstTensor::bhsd(bias.data(), DType::f32, 2, 4, 6, 5);
    arguments.mask = ConstTensor::bhsd(mask.data(), DType::boolean, 2, 4, 6, 5);
    arguments.alibi_slopes = slopes.data();
    arguments.sinks = sinks.data();
    arguments.seqlens_kv = seqlens.data();
  }
};

struct ModifierFault {
  std::string sentence;
  ErrorCode code;
  std::function<void(Arguments&, Options&)> plant;
};

constexpr std::int32_t kTokens[] = {0, 6};
void make_varlen(Arguments& a) {
  for (Tensor* t : {&a.out, &a.lse}) t->shape[0] = 1;
  for (ConstTensor* t : {&a.q, &a.k, &a.v}) t->shape[0] = 1;
  a.cu_seqlens_q = a.cu_seqlens_kv = kTokens;
  a.sequences = 1;
  a.max_seqlen_q = a.max_seqlen_kv = 6;
}

std::vector<ModifierFault> modifier_faults() {
  using A = Arguments;
  using O = Options;
  constexpr auto kInvalid = ErrorCode::invalid_argument, kUnsupported = ErrorCode::unsupported;
  const std::string shapes = "supported: (2, 4, 6, 5), each dimension that or 1.";
  return {
      {"softcap is -1; supported: 0 (none) or positive finite numbers.", kInvalid,
       [](A&, O& o) { o.softcap = -1; }},
      {"softcap is nan; supported: 0 (none) or positive finite numbers.", kInvalid,
       [](A&, O& o) { o.softcap = kNotANumber; }},
      {"softcap is inf; supported: 0 (none) or positive finite numbers.", kInvalid,
       [](A&, O& o) { o.softcap = std::numeric_limits<float>::infinity(); }},
      {"smooth_k is on with softcap 2; supported here: smooth_k without softcap.", kUnsupported,
       [](A& a, O& o) {
         a.seqlens_kv = nullptr;
         o.softcap = 2;
         o.precision = Precision::int8;
         o.quantization.smooth_k = true;
       }},
      {"bias.dtype is int8; supported: f16, bf16, f32.", kInvalid,
       [](A& a, O&) { a.bias.dtype = DType::int8; }},
      {"bias.dtype is bool; supported: f16, bf16, f32.", kInvalid,
       [](A& a, O&) { a.bias.dtype = DType::boolean; }},
      {"bias.shape is (2, 2, 6, 5); " + shapes, kInvalid, [](A& a, O&) { a.bias.shape[1] = 2; }},
      {"bias.shape is (2, 4, 6, 4); " + shapes, kInvalid, [](A& a, O&) { a.bias.shape[3] = 4; }},
      {"bias.stride[3] is 2; supported: 1 (contiguous columns).", kInvalid,
       [](A& a, O&) { a.bias.stride[3] = 2; }},
      {"bias.stride[0] is -1; supported: 0 or more.", kInvalid,
       [](A& a, O&) { a.bias.stride[0] = -1; }},
      {"out is in memory that bias also covers; supported: memory apart from bias.", kInvalid,
       [](A& a, O&) { a.bias.data = a.out.data; }},
      {"lse is in memory that bias also covers; supported: memory apart from bias.", kInvalid,
       [](A& a, O&) {
         a.bias.data = a.lse.data;
         a.bias.shape = {2, 4, 6, 1};
         a.bias.stride = a.lse.stride;
       }},
      {"out_amax is in memory that bias also covers; supported: memory apart from bias.", kInvalid,
       [](A& a, O&) { a.out_amax = const_cast<float*>(static_cast<const float*>(a.bias.data)); }},
      {"mask.dtype is f32; supported: bool.", kInvalid,
       [](A& a, O&) { a.mask.dtype = DType::f32; }},
      {"mask.shape is (2, 4, 5, 5); " + shapes, kInvalid, [](A& a, O&) { a.mask.shape[2] = 5; }},
      {"out is in memory that mask also covers; supported: memory apart from mask.", kInvalid,
       [](A& a, O&) { a.mask.data = a.out.data; }},
      {"alibi_batch_stride is -1; supported: 0 to 2^27.", kInvalid,
       [](A& a, O&) { a.alibi_batch_stride = -1; }},
      {"q.dtype is code 7", kInvalid, [](A& a, O&) { a.q.dtype = DType::boolean; }},
      {"seqlens_kv is given together with cu_seqlens; supported: one of the two.", kInvalid,
       [](A& a, O&) { make_varlen(a); }},
      {"bias is given together with cu_seqlens; supported here: dense and padded batches.",
       kUnsupported,
       [](A& a, O&) {
         make_varlen(a);
         a.seqlens_kv = nullptr;
       }},
      {"mask is given together with cu_seqlens; supported here: dense and padded batches.",
       kUnsupported,
       [](A& a, O&) {
         make_varlen(a);
         a.seqlens_kv = nullptr;
         a.bias = {};
       }},
      {"supported here: padded batches of f32, f16 and bf16, in precision native, fp16 or bf16.",
       kUnsupported, [](A&, O& o) { o.precision = Precision::fp8; }},
      // Found when the call runs.
      {"seqlens_kv[1] is 6; supported: 0 to 5, the rows behind the padding.", kInvalid,
       [](A& a, O&) {
         static constexpr std::int32_t kBad[] = {3, 6};
         a.seqlens_kv = kBad;
       }},
      {"seqlens_q[0] is -1; supported: 0 to 6, the rows behind the padding.", kInvalid,
       [](A& a, O&) {
         static constexpr std::int32_t kBad[] = {-1, 6};
         a.seqlens_q = kBad;
       }},
      {"leftpad_q[1] is 7; supported: 0 to 6, the rows of the tensor.", kInvalid,
       [](A& a, O&) {
         static constexpr std::int32_t kBad[] = {0, 7};
         a.leftpad_q = kBad;
       }},
      {"seqlens_kv[1] is 5; supported: 0 to 4, the rows behind the padding.", kInvalid,
       [](A& a, O&) {
         static constexpr std::int32_t kLeft[] = {0, 1};
         a.leftpad_kv = kLeft;
       }},
  };
}

TEST(BadModifiers, GetTheirSentenceAndNothingIsWritten) {
  for (const ModifierFault& fault : modifier_faults()) {
    SCOPED_TRACE(fault.sentence);
    Modified call;
    Options options;
    ASSERT_EQ(problem_of(call.arguments, options).status().message(), "");
    fault.plant(call.arguments, options);
    const Status status = attention(call.arguments, options);
    EXPECT_EQ(status.code(), fault.code) << status.message();
    EXPECT_NE(status.message().find(fault.sentence), std::string::npos) << status.message();
    EXPECT_TRUE(call.untouched());
    std::vector<double> out(2 * 4 * 6 * 8, 3.0);
    EXPECT_EQ(reference(call.arguments, options, out.data()).message(), status.message());
  }
}

TEST(Modifiers, AreDescribed) {
  Modified call;
  Options options;
  options.softcap = 2.5f;
  const Problem p = problem_of(call.arguments, options).value();
  EXPECT_EQ(describe(p),
            "B=2 Hq=4 Hkv=2 Sq=6 Skv=5 D=8 f32 padded softcap=2.5 bias=f32 alibi mask sinks lse");
}

TEST(Modifiers, RunsMustHaveTheModifiersOfTheirPlan) {
  Modified call;
  const Problem planned = problem_of(call.arguments).value();
  const auto refused = [&](const std::function<void(Arguments&)>& change) {
    Arguments a = call.arguments;
    change(a);
    return std::string(validate_run(planned, problem_of(a).value()).message());
  };
  EXPECT_EQ(refused([](Arguments&) {}), "");
  EXPECT_EQ(refused([](Arguments& a) { a.seqlens_kv = nullptr; }),
            "seqlens is absent; supported: given, for which the plan was made.");
  EXPECT_EQ(refused([](Arguments& a) { a.bias = {}; }),
            "bias dtype is none; supported: f32, for which the plan was made.");
  EXPECT_EQ(refused([](Arguments& a) { a.mask = {}; }),
            "mask is absent; supported: given, for which the plan was made.");
  EXPECT_EQ(refused([](Arguments& a) { a.alibi_slopes = nullptr; }),
            "alibi_slopes is absent; supported: given, for which the plan was made.");
  EXPECT_EQ(refused([](Arguments& a) { a.sinks = nullptr; }),
            "sinks is absent; supported: given, for which the plan was made.");
}

// ---------------------------------------------------------------------------------------------
// The oracle

struct Answer {
  std::vector<double> out, lse;
};
Answer answer(const Arguments& a, const Options& options = {}) {
  Answer found;
  const auto rows = static_cast<std::size_t>(a.q.shape[0] * a.q.shape[1] * a.q.shape[2]);
  found.out.resize(rows * static_cast<std::size_t>(a.q.shape[3]));
  found.lse.resize(rows);
  const Status status = reference(a, options, found.out.data(), found.lse.data());
  EXPECT_EQ(status.message(), "");
  return found;
}
void expect_equal(const Answer& a, const Answer& b, double tolerance = 0) {
  ASSERT_EQ(a.out.size(), b.out.size());
  for (std::size_t i = 0; i < a.out.size(); ++i) ASSERT_NEAR(a.out[i], b.out[i], tolerance) << i;
  for (std::size_t i = 0; i < a.lse.size(); ++i)
    ASSERT_TRUE(a.lse[i] == b.lse[i] || std::abs(a.lse[i] - b.lse[i]) <= tolerance) << i;
}

// One query and two keys, with the scores 0.5 and 1.
struct TwoKeys : Call {
  TwoKeys() : Call(1, 1, 1, 1, 2, 2) {
    q = {1.0f, 2.0f};
    k = {1.0f, 0.0f, 0.0f, 1.0f};
    v = {10.0f, 20.0f, 30.0f, 40.0f};
    arguments.scale = 0.5f;
  }
};
// What TwoKeys gives for these scores and this sink.
void expect_scores(const Answer& found, double s0, double s1, double sink = -kInfinite) {
  const double sum = std::exp(s0) + std::exp(s1) + std::exp(sink);
  const double p0 = std::exp(s0) / sum, p1 = std::exp(s1) / sum;
  EXPECT_NEAR(found.out[0], 10 * p0 + 30 * p1, 1e-12);
  EXPECT_NEAR(found.out[1], 20 * p0 + 40 * p1, 1e-12);
  EXPECT_NEAR(found.lse[0], std::log(sum), 1e-12);
}

TEST(ReferenceModifiers, EachByHand) {
  const float bias[] = {0.25f, -1.5f};
  const float slope = 0.75f, sink = 0.5f;
  Options options;
  {
    TwoKeys call;
    options.softcap = 2;
    expect_scores(answer(call.arguments, options), 2 * std::tanh(0.25), 2 * std::tanh(0.5));
  }
  TwoKeys call;
  call.arguments.bias = ConstTensor::bhsd(bias, DType::f32, 1, 1, 1, 2);
  expect_scores(answer(call.arguments), 0.75, -0.5);
  // Softcap comes before the bias.
  expect_scores(answer(call.arguments, options), 2 * std::tanh(0.25) + 0.25,
                2 * std::tanh(0.5) - 1.5);
  call.arguments.bias = {};
  // The bottom-right diagonal is key 1, the top-left one key 0.
  call.arguments.alibi_slopes = &slope;
  expect_scores(answer(call.arguments), 0.5 - 0.75, 1);
  call.arguments.alibi_slopes = nullptr;
  call.arguments.sinks = &sink;
  expect_scores(answer(call.arguments), 0.5, 1, 0.5);
  call.arguments.sinks = nullptr;
  const std::uint8_t mask[] = {0, 1};
  call.arguments.mask = ConstTensor::bhsd(mask, DType::boolean, 1, 1, 1, 2);
  expect_scores(answer(call.arguments), -kInfinite, 1);
}

TEST(ReferenceModifiers, AlibiCountsFromTheDiagonal) {
  Call call(1, 2, 2, 5, 9, 4);
  const std::vector<float> slopes = {0.5f, 0.125f};
  for (const Causal causal : {Causal::none, Causal::top_left, Causal::bottom_right}) {
    Options options;
    options.causal = causal;
    Arguments a = call.arguments, biased = call.arguments;
    a.alibi_slopes = slopes.data();
    std::vector<float> bias;
    for (std::size_t h = 0; h < 2; ++h)
      for (int i = 0; i < 5; ++i)
        for (int j = 0; j < 9; ++j) {
          const int diagonal = causal == Causal::top_left ? i : i + 4;
          bias.push_back(-slopes[h] * static_cast<float>(std::abs(diagonal - j)));
        }
    biased.bias = ConstTensor::bhsd(bias.data(), DType::f32, 1, 2, 5, 9);
    expect_equal(answer(a, options), answer(biased, options), 1e-12);
  }
}

// A causal mask as a mask tensor and as a bias, with V that is NaN wherever it must not count.
TEST(ReferenceModifiers, ACausalMaskAsABiasOrAMaskTensor) {
  Call call(2, 2, 1, 7, 7, 4);
  Options causal;
  causal.causal = Causal::top_left;
  const Answer expected = answer(call.arguments, causal);
  std::vector<float> bias;
  std::vector<std::uint8_t> mask;
  for (int i = 0; i < 7; ++i)
    for (int j = 0; j < 7; ++j) {
      bias.push_back(j <= i ? 0.0f : -std::numeric_limits<float>::infinity());
      mask.push_back(j <= i ? 1 : 0);
    }
  Arguments biased = call.arguments, masked = call.arguments;
  biased.bias = ConstTensor::bhsd(bias.data(), DType::f32, 1, 1, 7, 7);
  masked.mask = ConstTensor::bhsd(mask.data(), DType::boolean, 1, 1, 7, 7);
  expect_equal(answer(biased), expected, 1e-12);
  expect_equal(answer(masked), expected, 1e-12);
  // The last key is visible to the last row only.
  for (float* x : {&call.k[6 * 4], &call.v[6 * 4 + 1]}) *x = kNotANumber;
  for (const Arguments* a : {&biased, &masked}) {
    const Answer found = answer(*a);
    for (std::size_t i = 0; i < 6 * 4; ++i) ASSERT_NEAR(found.out[i], expected.out[i], 1e-12);
    EXPECT_TRUE(std::isnan(found.out[6 * 4]));
  }
}

TEST(ReferenceModifiers, NanReachesARowThatSeesNothingElse) {
  Call call(1, 1, 1, 2, 2, 4);
  Options options;
  options.causal = Causal::top_left;
  call.k[0] = kNotANumber;
  const Answer found = answer(call.arguments, options);
  EXPECT_TRUE(std::isnan(found.out[0]));
  EXPECT_TRUE(std::isnan(found.lse[0]));
}

TEST(ReferenceModifiers, RowsWithoutKeys) {
  Call call(1, 2, 1, 3, 4, 4);
  const std::vector<std::uint8_t> none(1, 0);
  const std::vector<float> sinks = {2.0f, -3.0f};
  Arguments a = call.arguments;
  a.mask = ConstTensor::bhsd(none.data(), DType::boolean, 1, 1, 1, 1);
  for (const bool with_sinks : {false, true}) {
    a.sinks = with_sinks ? sinks.data() : nullptr;
    const Answer found = answer(a);
    for (const double x : found.out) EXPECT_EQ(x, 0.0);
    for (std::size_t i = 0; i < 6; ++i)
      EXPECT_EQ(found.lse[i], with_sinks ? double{sinks[i / 3]} : -kInfinite);
  }
}

TEST(ReferenceModifiers, LargeSoftcapsAndNeutralModifiersChangeNothing) {
  Call call(2, 4, 2, 6, 5, 8);
  const Answer plain = answer(call.arguments);
  Options options;
  options.softcap = 1e6f;
  expect_equal(answer(call.arguments, options), plain, 1e-10);
  const std::vector<float> zeros(4), hidden(4, -std::numeric_limits<float>::infinity());
  const std::uint8_t visible = 1;
  Arguments a = call.arguments;
  a.alibi_slopes = zeros.data();
  a.sinks = hidden.data();
  a.bias = ConstTensor::bhsd(zeros.data(), DType::f32, 1, 4, 1, 1);
  a.mask = ConstTensor::bhsd(&visible, DType::boolean, 1, 1, 1, 1);
  expect_equal(answer(a), plain);
}

TEST(ReferenceModifiers, PaddedSequencesEqualSlicedOnes) {
  constexpr std::int64_t kB = 3, kH = 2, kSq = 7, kSkv = 9, kD = 4;
  Call call(kB, kH, 1, kSq, kSkv, kD);
  const std::vector<std::int32_t> leftpad_q = {0, 2, 7}, seqlens_q = {4, 5, 0};
  const std::vector<std::int32_t> leftpad_kv = {3, 0, 1}, seqlens_kv = {6, 2, 8};
  const std::vector<float> slopes = {0.5f, 0.1f}, sinks = {1.0f, 0.0f};
  Arguments padded = call.arguments;
  padded.leftpad_q = leftpad_q.data(), padded.seqlens_q = seqlens_q.data();
  padded.leftpad_kv = leftpad_kv.data(), padded.seqlens_kv = seqlens_kv.data();
  padded.alibi_slopes = slopes.data(), padded.sinks = sinks.data();
  for (const Causal causal : {Causal::none, Causal::top_left, Causal::bottom_right}) {
    Options options;
    options.causal = causal;
    options.window_left = 4;
    const Answer found = answer(padded, options);
    for (std::int64_t b = 0; b < kB; ++b) {
      const auto i = static_cast<std::size_t>(b);
      Arguments one = padded;
      one.leftpad_q = one.seqlens_q = one.leftpad_kv = one.seqlens_kv = nullptr;
      one.lse = {};
      one.q.shape = one.out.shape = {1, kH, seqlens_q[i], kD};
      one.k.shape = one.v.shape = {1, 1, seqlens_kv[i], kD};
      one.q.data = call.q.data() + (b * kH * kSq + leftpad_q[i]) * kD;
      one.k.data = call.k.data() + (b * kSkv + leftpad_kv[i]) * kD;
      one.v.data = call.v.data() + (b * kSkv + leftpad_kv[i]) * kD;
      const Answer alone = seqlens_q[i] == 0 ? Answer() : answer(one, options);
      for (std::int64_t h = 0; h < kH; ++h)
        for (std::int64_t row = 0; row < kSq; ++row) {
          const std::int64_t r = row - leftpad_q[i];
          const bool used = r >= 0 && r < seqlens_q[i];
          const auto at = static_cast<std::size_t>((b * kH + h) * kSq + row);
          const auto there = static_cast<std::size_t>(h * seqlens_q[i] + r);
          EXPECT_EQ(found.lse[at], used ? alone.lse[there] : -kInfinite);
          for (std::size_t d = 0; d < kD; ++d)
            EXPECT_EQ(found.out[at * kD + d], used ? alone.out[there * kD + d] : 0.0);
        }
    }
  }
}

}  // namespace
}  // namespace octavo
