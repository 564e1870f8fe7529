// SPDX-License-Identifier: Apache-2.0
// Schedules in combinations that no table row has, but that a caller may request. They are
// instantiated here and run on the problems of every emulated kernel.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "device/sm90/forward.cuh"
#include "emulator/sm90_runner.h"
#include "gpu/forward/sm90_forward.h"
#include "gpu/jit/config_text.h"

namespace octavo::evidence {
namespace {

template <Sm90ForwardConfig kConfig>
void run_forward(const Sm90ForwardParams& p) {
  using Config = sm90::ConfigOf<kConfig>;
  sm90::sm90_forward<Config>(static_cast<const sm90::ParamsOf<Config>&>(p));
}

template <Sm90ForwardConfig kConfig>
void expect_right() {
  const emulator::EmulatedSm90Forward kernel{kConfig, &run_forward<kConfig>};
  EXPECT_TRUE(feasible(kConfig, 90).ok()) << feasible(kConfig, 90).message();
  for (const std::optional<std::uint64_t> seed : {std::optional<std::uint64_t>(), {7}}) {
    CheckOptions options;
    options.device = {Device::Kind::emulator, 90};
    options.repeat = 1;
    std::vector<Case> cases = cases_for(kConfig);
    // The host refuses hostile cu_seqlens; hostile_seqlens_test.cc has them.
    std::erase_if(cases, [](const Case& c) { return c.seqlens != Seqlens::plain; });
    const Result<CheckReport> report = check_cases(options, cases, runner_of(kernel, seed));
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_GE(report->cases, 3);
    for (const std::string& failure : report->failures)
      ADD_FAILURE() << brief_text(kConfig) << ": " << failure;
  }
}

constexpr Sm90ForwardConfig kSplit16{
    .warpgroups = 2, .block_n = 64, .stages = 2, .schedule = Schedule::pv_first, .row_groups = 1};
constexpr Sm90ForwardConfig kSplit8{.element = Element::e4m3,
                                    .v_element = Element::e4m3,
                                    .warpgroups = 1,
                                    .block_n = 64,
                                    .stages = 2,
                                    .schedule = Schedule::qk_first,
                                    .row_groups = 1,
                                    .cluster = 2,
                                    .pv_columns = 64};

constexpr Sm90ForwardConfig with_one_stage(Sm90ForwardConfig c) {
  c.stages = 1;
  return c;
}
constexpr Sm90ForwardConfig with_schedule(Sm90ForwardConfig c, Schedule schedule) {
  c.schedule = schedule;
  return c;
}
constexpr Sm90ForwardConfig with_scores(Sm90ForwardConfig c, ScoreType scores) {
  c.scores = scores;
  return c;
}
constexpr Sm90ForwardConfig in_int8(Sm90ForwardConfig c) {
  c.element = c.v_element = Element::int8;
  c.k_scales = KScales::block;
  return c;
}
// Without split-KV.
constexpr Sm90ForwardConfig persistent(Sm90ForwardConfig c) {
  c.row_groups = 0;
  c.cluster = 1;
  c.warpgroups = 2;
  return c;
}

TEST(EmulatorSm90, PvFirstWithSplitKvIn16Bits) {
  expect_right<kSplit16>();
  expect_right<with_one_stage(kSplit16)>();
}

TEST(EmulatorSm90, QkFirstWithSplitKvIn8Bits) {
  expect_right<kSplit8>();
  expect_right<with_one_stage(kSplit8)>();
  expect_right<with_scores(kSplit8, ScoreType::f16)>();
  expect_right<in_int8(kSplit8)>();
}

TEST(EmulatorSm90, OneStageWithSplitKvIn8Bits) {
  expect_right<with_one_stage(with_schedule(kSplit8, Schedule::pv_first))>();
  expect_right<with_one_stage(with_schedule(in_int8(kSplit8), Schedule::pv_first_queued))>();
}

TEST(EmulatorSm90, QkFirstWithFp16AndBiasedScores) {
  expect_right<persistent(with_scores(kSplit8, ScoreType::f16_fast))>();
  expect_right<persistent(in_int8(kSplit8))>();
}

}  // namespace
}  // namespace octavo::evidence
