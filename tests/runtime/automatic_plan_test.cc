// SPDX-License-Identifier: Apache-2.0
// precision auto: the fastest recorded mode within the requested error, and the error sentence if
// there is none.
#include "runtime/plan/automatic_plan.h"

#include <gtest/gtest.h>

#include "attention/call.h"
#include "octavo/emulator.hpp"

namespace octavo {
namespace {

using test::Call;

constexpr Device kCpu{Device::Kind::cpu, 0}, kGpu{Device::Kind::cuda, 0};
constexpr std::array<RecordSize, 2> kSizes = {{{8, 512, 64}, {8, 16384, 128}}};
constexpr std::array<PrecisionRecord, 5> kModes = {{{Precision::fp16, 1e-3, {5, 1000}},
                                                    {Precision::bf16, 8e-3, {5, 1000}},
                                                    {Precision::fp8_fast, 0.5, {7, 500}},
                                                    {Precision::fp8, 0.4, {7.5, 700}},
                                                    {Precision::int8, 0.1, {8, 900}}}};
constexpr PrecisionRecords kRecords{"a GPU", kSizes, kModes};

Problem problem(std::int64_t length, float max_error, DType type = DType::f16) {
  Problem p;
  p.batch = 1;
  p.heads_q = p.heads_kv = 8;
  p.seqlen_q = p.seqlen_kv = length;
  p.head_dim = p.head_dim_v = 128;
  p.q = p.k = p.v = p.out = type;
  p.options.precision = Precision::automatic;
  p.options.max_error = max_error;
  return p;
}

std::vector<Precision> chosen(const Problem& p, Device device = kGpu) {
  const std::vector<Candidate> found = automatic_candidates(kRecords, p, device).value();
  std::vector<Precision> order;
  for (const Candidate& c : found) order.push_back(c.precision);
  return order;
}

TEST(Automatic, ChoosesTheFastestWithinTheError) {
  using enum Precision;
  EXPECT_EQ(chosen(problem(8192, 1)), (std::vector{fp8_fast, fp8, int8, fp16}));
  EXPECT_EQ(chosen(problem(8192, 0.45f)), (std::vector{fp8, int8, fp16}));
  EXPECT_EQ(chosen(problem(8192, 0.2f)), (std::vector{int8, fp16}));
  EXPECT_EQ(chosen(problem(8192, 0.01f)), (std::vector{fp16}));
  EXPECT_EQ(chosen(problem(8192, 0.01f, DType::bf16)), (std::vector{bf16}));
  // Short calls take longer in 8 bits.
  EXPECT_EQ(chosen(problem(256, 1))[0], fp16);
  EXPECT_EQ(chosen(problem(8192, 1), kCpu), (std::vector{fp16}));
}

TEST(Automatic, GivesTheReason) {
  EXPECT_EQ(automatic_candidates(kRecords, problem(8192, 0.2f), kGpu).value()[0].reason,
            "auto takes int8: the fastest mode, 900 us at (1, 8, 16384, 128) on a GPU, whose worst "
            "recorded error, 0.1, is within 0.2");
  EXPECT_EQ(automatic_candidates(kRecords, problem(8192, 1e-4f), kGpu).status().message(),
            "max_error is 0.0001; supported: at least the worst recorded error of a mode, here "
            "fp8_fast 0.5, fp8 0.4, int8 0.1, fp16 0.001.");
  EXPECT_EQ(automatic_candidates({}, problem(8192, 1), kGpu).status().message(),
            "precision is auto; supported here: a named precision, as no errors are recorded.");
}

TEST(Automatic, OnTheCpuEquals16BitPrecision) {
  Call call(1, 2, 2, 30, 40, 16), expected(1, 2, 2, 30, 40, 16);
  Options options;
  options.precision = Precision::fp16;
  ASSERT_TRUE(attention(expected.arguments, options).ok());
  options.precision = Precision::automatic;
  options.max_error = 0.01f;
  const Problem run_problem = problem_of(call.arguments, options).value();
  const Plan plan(make_automatic_plan(run_problem, kCpu, kRecords).value());
  std::vector<std::byte> memory(plan.workspace_bytes());
  ASSERT_EQ(plan.run(call.arguments, {memory.data(), memory.size()}).message(), "");
  EXPECT_EQ(call.out, expected.out);
  EXPECT_EQ(plan.problem(), run_problem) << "who keeps plans by problem finds it";
  EXPECT_EQ(plan.explain().reason.find("auto takes fp16: on a CPU"), 0U);
  EXPECT_EQ(plan.explain().max_error, 1e-3);
}

// Modes that the chip does not serve are skipped.
TEST(Automatic, ChoosesOnlyServedModes) {
  if (!has_emulator()) GTEST_SKIP() << "this library has no emulator";
  constexpr std::array<PrecisionRecord, 2> kMixedFirst = {
      {{Precision::int8_mixed, 0.01, {1, 1}}, {Precision::fp8, 0.4, {7, 7}}}};
  Problem run_problem = problem(512, 1);
  run_problem.head_dim = run_problem.head_dim_v = 64;
  const auto made =
      make_automatic_plan(run_problem, {Device::Kind::emulator, 0}, {"a GPU", kSizes, kMixedFirst});
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ((*made)->explain().reason.find("auto takes fp8: "), 0U);
}

TEST(Automatic, BadInputGetsAnErrorSentence) {
  Call call(1, 1, 1, 4, 4, 8);
  Options options;
  const auto sentence = [&] { return attention(call.arguments, options).message(); };
  options.precision = Precision::automatic;
  EXPECT_EQ(sentence(), "max_error is 0; supported: positive finite numbers, with precision auto.");
  options.precision = Precision::fp8;
  options.max_error = 0.5f;
  EXPECT_EQ(sentence(), "max_error is 0.5 with precision fp8; supported: precision auto, or none.");
  options.precision = Precision::automatic;
  call.arguments.k.dtype = DType::e4m3;
  EXPECT_EQ(sentence().find("precision is auto with inputs f32, e4m3, f32; supported: f32, f16, "),
            0U);
  EXPECT_TRUE(call.untouched());
}

}  // namespace
}  // namespace octavo
