// SPDX-License-Identifier: Apache-2.0
// The kernels of the ladder in the emulator: against fp64 under several schedules, without hazards,
// and with every barrier and mask term switched off in turn.
#include "emulator/kernels/ladder.h"

#include <gtest/gtest.h>

#include <optional>

#include "emulator/long.h"
#include "evidence/cases/emulated_cases.h"
#include "evidence/gates/check.h"
#include "evidence/ladder/ladder_cases.h"
#include "gpu/ladder/ladder.h"
#include "octavo/emulator.hpp"
#include "runtime/emulated/emulated_gpu.h"
#include "runtime/emulated/emulated_launch.h"

namespace octavo::evidence {
namespace {

Runner runner_of(const emulator::EmulatedLadder& kernel, std::optional<std::uint64_t> seed) {
  return plain_runner([&kernel, seed](const Arguments& arguments, const Options& options) {
    const Result<Problem> problem = problem_of(arguments, options);
    if (!problem.ok()) return problem.status();
    emulator::Settings settings;
    settings.seed = seed;
    Status found;
    const GpuInfo& chip = emulated_gpu({Device::Kind::emulator, 90}).value()->info;
    const Status status = run_emulated(
        kernel, chip, *problem, arguments, settings, [&found](const emulator::Machine& machine) {
          if (!machine.report().clean()) found = {ErrorCode::device_error, machine.report().text()};
        });
    return status.ok() ? found : status;
  });
}

void expect_right(const emulator::EmulatedLadder& kernel, const std::vector<Case>& cases,
                  std::optional<std::uint64_t> seed) {
  CheckOptions options;
  options.device = {Device::Kind::emulator, 90};
  options.repeat = 1;
  const Result<CheckReport> report = check_cases(options, cases, runner_of(kernel, seed));
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->cases, static_cast<std::int64_t>(cases.size()));
  for (const std::string& failure : report->failures)
    ADD_FAILURE() << to_text(kernel.config) << ": " << failure;
}

TEST(EmulatorLadder, EveryKernelIsListedOnce) {
  const auto& kernels = emulator::ladder_kernels();
  ASSERT_EQ(kernels.size(), kLadder.size());
  for (std::size_t i = 0; i < kernels.size(); ++i) EXPECT_EQ(kernels[i].config, kLadder[i]);
}

// Without a seed and with one, or two: copies and products then complete in other orders.
TEST(EmulatorLadder, EveryKernelIsRightUnderEverySchedule) {
  for (const emulator::EmulatedLadder& kernel : emulator::ladder_kernels())
    for (const std::optional<std::uint64_t> seed : {std::optional<std::uint64_t>(), {1}, {2}}) {
      const bool slow = kernel.config.rung < Rung::async_copies && kernel.config.head_dim == 128;
      if (seed && (slow || seed == 2) && !test_long()) continue;
      expect_right(kernel, cases_for(kernel.config), seed);
    }
}

// Lengths around the edges of tiles and blocks, full and causal.
TEST(EmulatorLadder, LengthsAroundTheEdgesOfTiles) {
  for (const emulator::EmulatedLadder& kernel : emulator::ladder_kernels()) {
    if (kernel.config.head_dim != 64) continue;
    const LadderShape shape = shape_of(kernel.config);
    std::vector<Case> cases;
    Case c;
    c.lse = false;
    for (const int around : {-1, 0, 1})
      for (const Causal causal : {Causal::none, Causal::top_left}) {
        c.options.causal = causal;
        c.seqlen_q = shape.rows + around;
        c.seqlen_kv = kernel.config.rung == Rung::scalar ? 65 + around : shape.keys + around;
        c.seed = static_cast<std::uint64_t>(around + 5);
        cases.push_back(c);
      }
    expect_right(kernel, cases, {});
  }
}

// Each wait, barrier, commit and mask term is needed, and the emulator or the result says so.
TEST(EmulatorLadder, EveryMutantIsCaught) {
  for (const LadderConfig& config : kLadder) {
    if (config.head_dim != 64 && !test_long()) continue;
    const Result<std::vector<MutantReport>> reports =
        emulator_mutants("ladder " + brief_text(config));
    ASSERT_TRUE(reports.ok()) << reports.status().message();
    ASSERT_EQ(reports->size(), 1U);
    const MutantReport& report = reports->front();
    EXPECT_EQ(report.failure, "") << report.brief;
    for (const Mutant& mutant : report.mutants)
      EXPECT_NE(mutant.caught_by, "") << report.brief << ": " << mutant.call << " survives";
    EXPECT_TRUE(report.passed()) << report.brief;
  }
}

TEST(EmulatorLadder, RefusesWhatItDoesNotCompute) {
  Problem p;
  p.batch = p.heads_q = p.heads_kv = 1;
  p.seqlen_q = p.seqlen_kv = 10;
  p.head_dim = p.head_dim_v = 64;
  p.q = p.k = p.v = p.out = DType::f16;
  EXPECT_TRUE(ladder_serves(p).ok());
  Problem other = p;
  other.head_dim = other.head_dim_v = 96;
  EXPECT_EQ(ladder_serves(other).message(),
            "head_dim is 96; supported here: 64, 128 on the ladder.");
  other = p;
  other.q = DType::bf16;
  EXPECT_EQ(ladder_serves(other).message(), "dtype is bf16; supported here: f16 on the ladder.");
  other = p;
  other.heads_q = 2;
  EXPECT_EQ(ladder_serves(other).message(),
            "heads_kv is 1; supported here: heads_q on the ladder.");
  other = p;
  other.options.causal = Causal::bottom_right;
  EXPECT_EQ(ladder_serves(other).message(),
            "causal is bottom_right; supported here: none, top_left on the ladder.");
  EXPECT_TRUE(ladder_runs_on(Rung::async_copies, 89).ok());
  EXPECT_EQ(ladder_runs_on(Rung::specialised_warps, 89).message(),
            "the GPU is sm_89; supported here: sm_90 for the rung specialised_warps.");
}

}  // namespace
}  // namespace octavo::evidence
