// SPDX-License-Identifier: Apache-2.0
// The twelve cases of every precision of the sm80 family, and of the Hopper kernels, in the
// emulator, under many schedules.
//
// Small shapes run under two schedules each, whose bits must agree, or under one after quantizers.
// The `mission` preset (1, 8, 512, 64) takes most of the time and runs under one schedule: with its
// first input, after quantizers not at all, nor in formats whose kernels are those of another one.
// `make test-long`: all of it, under twenty schedules.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "emulator/long.h"
#include "evidence/gates/check.h"
#include "octavo/emulator.hpp"

namespace octavo::evidence {
namespace {

constexpr int kSchedules = 2, kLongSchedules = 20;

struct Mode {
  DType input;
  Precision precision = Precision::native;
  int chip = 0;  // of the emulator
  Device device() const { return {Device::Kind::emulator, chip}; }
};
// Inputs as they are, and 16-bit inputs that the quantizers prepare; then the Hopper kernels.
constexpr Mode kModes[] = {{DType::f16},
                           {DType::bf16},
                           {DType::e4m3},
                           {DType::e5m2},
                           {DType::int8},
                           {DType::sim8},
                           {DType::f16, Precision::fp8},
                           {DType::f16, Precision::fp8_fast},
                           {DType::f16, Precision::int8},
                           {DType::f16, Precision::sim8},
                           {DType::f16, Precision::native, 90},
                           {DType::bf16, Precision::native, 90},
                           {DType::e4m3, Precision::native, 90},
                           {DType::e5m2, Precision::native, 90},
                           {DType::f16, Precision::fp8, 90},
                           {DType::int8, Precision::native, 90},
                           {DType::f16, Precision::int8, 90},
                           {DType::f16, Precision::fp8_mixed, 90},
                           {DType::f16, Precision::int8_mixed, 90}};

// Each call of a case uses the next schedule.
Runner scheduled_runner(Device device, std::uint64_t first) {
  return [=, runner = library_runner(device)](const Arguments& arguments,
                                              const Options& options) -> Result<Call> {
    const Result<Call> call = runner(arguments, options);
    if (!call.ok()) return call.status();
    return Call([call = *call, seed = first]() mutable {
      set_emulator_schedule(seed++);
      const Status status = call();
      set_emulator_schedule({});
      return status;
    });
  };
}

void check(Device device, const std::vector<Case>& cases, int schedules, std::uint64_t first) {
  ASSERT_FALSE(cases.empty());
  CheckOptions options;
  options.device = device;
  options.repeat = schedules;
  const Result<CheckReport> report = check_cases(options, cases, scheduled_runner(device, first));
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->cases, static_cast<std::int64_t>(cases.size()));
  EXPECT_EQ(report->not_run, 0);
  for (const std::string& failure : report->failures) ADD_FAILURE() << failure;
}

std::vector<Case> twelve_of(const Mode& mode, bool mission) {
  std::vector<Case> cases;
  for (const Case& c : twelve_cases())
    if (c.input == mode.input && c.options.precision == mode.precision &&
        (c.seqlen_q == 512) == mission)
      cases.push_back(c);
  return cases;
}

class EmulatorSuite : public testing::TestWithParam<Mode> {};

TEST_P(EmulatorSuite, SmallShapesUnderEverySchedule) {
  const int schedules = GetParam().precision == Precision::native ? kSchedules : 1;
  check(GetParam().device(), twelve_of(GetParam(), false), test_long() ? kLongSchedules : schedules,
        1);
}

// E5M2 is E4M3 with another instruction, and BF16 is FP16.
void mission(const Mode& mode, std::size_t input) {
  const bool is_twin = mode.input == DType::e5m2 || mode.input == DType::bf16;
  const bool is_quantized = mode.precision != Precision::native;
  if ((is_twin || is_quantized || input > 0) && !test_long()) GTEST_SKIP() << "make test-long";
  const std::vector<Case> cases = twelve_of(mode, true);
  ASSERT_EQ(cases.size(), 3U);
  check(mode.device(), {cases[input]}, test_long() ? kLongSchedules : 1, 1 + input);
}
TEST_P(EmulatorSuite, MissionPresetFirstInput) { mission(GetParam(), 0); }
TEST_P(EmulatorSuite, MissionPresetSecondInput) { mission(GetParam(), 1); }
TEST_P(EmulatorSuite, MissionPresetThirdInput) { mission(GetParam(), 2); }

// A problem whose own kernel is not compiled for the emulator uses the kernel with the least
// padding that serves it.
TEST(EmulatorSuiteOf, HeadDimensionsWithoutTheirOwnKernel) {
  std::vector<Case> cases;
  for (const std::int64_t head_dim : {40, 48, 80, 96}) {
    Case c;
    c.head_dim = head_dim;
    c.seqlen_q = c.seqlen_kv = 70;
    c.options.causal = Causal::top_left;
    for (const DType input : {DType::f16, DType::bf16}) {
      c.input = c.out = input;
      cases.push_back(c);
    }
  }
  check({Device::Kind::emulator, 0}, cases, 2, 1);
}

Case other_v_case(std::int64_t head_dim, std::int64_t head_dim_v, DType input = DType::f16) {
  Case c;
  c.head_dim = head_dim;
  c.head_dim_v = head_dim_v;
  c.heads_q = 2;
  c.seqlen_q = 70;
  c.seqlen_kv = 170;
  c.input = c.out = input;
  return c;
}
Case with_every_modifier(Case c) {
  c.options.softcap = 4;
  c.options.causal = Causal::bottom_right;
  c.bias = c.input;
  c.mask = c.alibi = c.sinks = c.padded = true;
  c.batch = 2;
  return c;
}

// V with other columns than Q and K: masks, heads that share keys, varlen and padded batches,
// modifiers, rows of few bytes. batch_invariant: the persistent Hopper kernel, else split-KV.
TEST(EmulatorSuiteOf, OtherColumnsOfV) {
  std::vector<Case> older = {other_v_case(192, 128), with_every_modifier(other_v_case(100, 60)),
                             other_v_case(40, 128, DType::bf16)};
  older[0].options.causal = Causal::bottom_right;
  older[2].layout = Layout::varlen;
  older[2].batch = 2;
  older[2].options.window_left = 50;
  check({Device::Kind::emulator, 0}, older, 2, 1);

  std::vector<Case> hopper = {other_v_case(192, 128), other_v_case(128, 64)};
  for (const auto& [head_dim, head_dim_v] : {std::pair{192, 128}, {64, 128}, {104, 72}, {40, 56}}) {
    hopper.push_back(other_v_case(head_dim, head_dim_v));
    hopper.back().options.batch_invariant = true;
    hopper.back().lse = head_dim == 64;
    hopper.back().options.window_left = 90;
  }
  hopper.push_back(other_v_case(184, 120));
  hopper.back().layout = Layout::varlen;
  hopper.back().options.causal = Causal::bottom_right;
  hopper.push_back(with_every_modifier(other_v_case(192, 128, DType::bf16)));
  check({Device::Kind::emulator, 90}, hopper, 2, 1);
}

// More than 256 columns: of Q and K, of V, and of both; masks of both alignments, heads that share
// keys, varlen and padded batches, modifiers, rows that see no key.
TEST(EmulatorSuiteOf, WideHeads) {
  std::vector<Case> older = {other_v_case(512, 0), other_v_case(64, 304),
                             with_every_modifier(other_v_case(264, 0, DType::bf16))};
  older[0].options.causal = Causal::bottom_right;
  older[1].layout = Layout::varlen;
  older[1].batch = 2;
  older[1].options.window_left = 20;
  for (Case& c : older) {
    c.seqlen_q = 40;
    c.seqlen_kv = 30;  // the first rows see no key
  }
  check({Device::Kind::emulator, 0}, older, 1, 1);

  std::vector<Case> hopper = {other_v_case(512, 0), other_v_case(320, 0, DType::bf16),
                              other_v_case(64, 512)};
  hopper[2].heads_kv = 2;
  hopper[0].lse = true;
  hopper[1].options.causal = Causal::top_left;
  hopper[2].layout = Layout::varlen;
  hopper[2].batch = 2;
  check({Device::Kind::emulator, 90}, hopper, 3, 1);

  hopper = {other_v_case(400, 0), other_v_case(48, 264), other_v_case(512, 40),
            other_v_case(384, 64), with_every_modifier(other_v_case(384, 0, DType::bf16))};
  hopper[0].options.causal = Causal::bottom_right;
  hopper[0].seqlen_kv = 40;
  hopper[1].options.window_left = 30;
  hopper[1].options.window_right = 20;
  hopper[2].layout = Layout::bshd;
  for (Case& c : hopper) c.heads_q = c.heads_kv = 1;
  check({Device::Kind::emulator, 90}, hopper, 1, 4);
}

// No alarm: neither a hazard nor a wrong result. `octavo check --device emulator` draws 1,000.
TEST(EmulatorSuiteOf, RandomProblemsHaveNoHazards) {
  for (const int chip : {0, 90}) {
    CheckOptions options;
    options.device = {Device::Kind::emulator, chip};
    options.cases = random_problems(15);
    options.seed = static_cast<std::uint64_t>(7 + first_seed());
    options.repeat = 1;
    const Result<CheckReport> report = octavo::check(options);
    ASSERT_TRUE(report.ok()) << report.status().message();
    // A plan does not know how rows are aligned, and narrow ones have few kernels.
    EXPECT_GE(report->cases, options.cases * 2 / 3);
    for (const std::string& failure : report->failures) ADD_FAILURE() << failure;
  }
}

// Eight values of V that the 16-bit gate's rounding leaves as they are, into an FP32 output.
TEST(EmulatorSuiteOf, OneKeyOfFewColumns) {
  check({Device::Kind::emulator, 90}, {small_random_case(207'000'302)}, 2, 1);
}

INSTANTIATE_TEST_SUITE_P(Modes, EmulatorSuite, testing::ValuesIn(kModes), [](const auto& mode) {
  return fmt::format("{}_{}{}", name(mode.param.input), name(mode.param.precision),
                     mode.param.chip == 0 ? "" : fmt::format("_sm{}", mode.param.chip));
});

}  // namespace
}  // namespace octavo::evidence
