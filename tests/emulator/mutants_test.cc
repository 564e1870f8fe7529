// Every wait, barrier and mask term of the kernels is needed, or known not to be.
#include <gtest/gtest.h>

#include "emulator/long.h"
#include "emulator/sm90_forward.h"
#include "gpu/config_text.h"
#include "octavo/emulator.hpp"

namespace octavo {
namespace {

void expect_accounted_for(const std::string& kernel, std::size_t at_least = 10) {
  const Result<std::vector<MutantReport>> reports = emulator_mutants(kernel);
  ASSERT_TRUE(reports.ok()) << reports.status().message();
  for (const MutantReport& report : *reports) {
    EXPECT_EQ(report.failure, "") << report.brief;
    EXPECT_GE(report.mutants.size(), at_least) << report.brief;
    for (const Mutant& mutant : report.mutants)
      EXPECT_TRUE(mutant.accounted_for()) << report.brief << ": " << mutant.call << " survives";
    EXPECT_TRUE(report.passed());
  }
}

// Kernels that divide the keys among warps have every barrier there is; sim8 clears its padding
// too.
TEST(EmulatorMutants, OfKernelsWithWarpsAlongTheKeys) {
  expect_accounted_for("block_m=32,warps_m=2,warps_n=4");
  expect_accounted_for("element=sim8,block_m=32,warps_m=2,warps_n=4");
}

// The smallest of the form that divides keys over a cluster, and of the form with a loader.
TEST(EmulatorMutants, OfHopperKernels) {
  const auto work = [](const Sm90Forward& c) {
    return c.warpgroups * c.head_dim * c.block_n * c.stages * (c.element == Element::f16 ? 1 : 2);
  };
  const emulator::EmulatedSm90Forward* clustered = nullptr;
  const emulator::EmulatedSm90Forward* loading = nullptr;
  for (const auto& kernel : emulator::sm90_forward_kernels()) {
    if (kernel.config.split_keys && kernel.config.cluster == 1) continue;
    const auto*& least = kernel.config.split_keys ? clustered : loading;
    if (least == nullptr || work(kernel.config) < work(least->config)) least = &kernel;
  }
  for (const auto* kernel : {clustered, loading}) {
    ASSERT_NE(kernel, nullptr);
    expect_accounted_for("sm90_forward " + brief_text(kernel->config));
  }
}

// Who starts early must wait; rows of packed heads have ends of their own.
TEST(EmulatorMutants, OfHopperKernelsThatStartEarlyOrPackHeads) {
  int waits = 0, packed = 0;
  for (const auto& kernel : emulator::sm90_forward_kernels()) {
    const std::string name = "sm90_forward " + brief_text(kernel.config);
    // Those of codes have no waits of their own for it.
    const bool codes = sm90::codes_qk(kernel.config);
    if (kernel.config.pack_heads && kernel.config.head_dim == 64 && !kernel.config.amax && !codes) {
      ++packed;
      expect_accounted_for(name);
    }
    // Mixed kernels and codes as outputs have the same waits.
    const bool others = sm90::is_mixed(kernel.config) || sm90::codes_out(kernel.config);
    if (!kernel.config.early_start || kernel.config.code_exp || others) continue;
    const Result<std::vector<MutantReport>> reports = emulator_mutants(name);
    ASSERT_TRUE(reports.ok()) << reports.status().message();
    for (const Mutant& mutant : reports->at(0).mutants) {
      EXPECT_TRUE(mutant.accounted_for()) << name << ": " << mutant.call << " survives";
      const bool waits_for_grids = mutant.call.find("griddepcontrol.wait") != std::string::npos;
      if (waits_for_grids && mutant.caught_by != "") ++waits;
    }
  }
  EXPECT_GE(waits, 4);
  EXPECT_EQ(packed, 1);
}

// In 8 bits, with scales of every key; with scores in FP16, of blocks of them and started early.
TEST(EmulatorMutants, OfHopperKernelsIn8Bits) {
  const emulator::EmulatedSm90Forward* clustered = nullptr;
  const emulator::EmulatedSm90Forward* loading = nullptr;
  const emulator::EmulatedSm90Forward* in_pairs = nullptr;
  for (const auto& kernel : emulator::sm90_forward_kernels()) {
    const Sm90Forward& c = kernel.config;
    if (sm90::is_mixed(c)) continue;
    if (c.element == Element::e4m3 && c.k_row_scales && c.head_dim == 64)
      (c.split_keys ? clustered : loading) = &kernel;
    if (c.f16_scores && !c.code_exp && c.early_start && !c.split_keys) in_pairs = &kernel;
  }
  for (const auto* kernel : {clustered, loading, in_pairs}) {
    ASSERT_NE(kernel, nullptr);
    expect_accounted_for("sm90_forward " + brief_text(kernel->config));
  }
}

// 8-bit Q and K beside V of 16 bits, with scales of blocks of keys.
TEST(EmulatorMutants, OfMixedHopperKernels) {
  const emulator::EmulatedSm90Forward* clustered = nullptr;
  const emulator::EmulatedSm90Forward* loading = nullptr;
  for (const auto& kernel : emulator::sm90_forward_kernels()) {
    const Sm90Forward& c = kernel.config;
    if (!sm90::is_mixed(c) || !c.k_block_scales || c.head_dim != 64 || c.early_start) continue;
    if (c.split_keys && c.cluster > 1 && c.element == Element::int8) clustered = &kernel;
    if (!c.split_keys && c.mixed_v == MixedV::f16 && c.element == Element::e4m3) loading = &kernel;
  }
  for (const auto* kernel : {clustered, loading}) {
    ASSERT_NE(kernel, nullptr);
    expect_accounted_for("sm90_forward " + brief_text(kernel->config));
  }
}

// Rows have no barrier, only ends; channels have both.
TEST(EmulatorMutants, OfQuantizers) {
  expect_accounted_for("quantize to=e4m3", 4);
  expect_accounted_for("quantize group=channel,amax_pass=true", 3);
  expect_accounted_for("quantize to=e4m3,group=channel,threads=256,transposed=true", 4);
  // Early starts, ends of all three operands, a cluster's maxima.
  const std::string all = "quantize to=e4m3,group=head";
  const std::string shared = ",threads=256,transposed=true,operands=true";
  expect_accounted_for(all + ",amax_pass=true" + shared, 8);
  expect_accounted_for(all + shared, 8);
  expect_accounted_for(all + shared + ",hold=true", 12);
  // A smoothed K: the ends of its rows, also where they are 0.
  expect_accounted_for("quantize mean_pass=1", 2);
  expect_accounted_for("quantize to=e4m3,smooth=true", 5);
  expect_accounted_for(all + shared + ",hold=true,smooth=true", 12);
  expect_accounted_for(all + ",amax_pass=true" + shared + ",smooth=true", 8);
  expect_accounted_for("quantize group=head,amax_pass=true,smooth=true", 4);
  expect_accounted_for("quantize group=block,smooth=true", 6);
}

TEST(EmulatorMutants, OfEverySm80Kernel) {
  if (!test_long()) GTEST_SKIP() << "make test-long";
  expect_accounted_for("sm80_forward");
}
// Those of bf16 and e5m2 are the same lines.
TEST(EmulatorMutants, OfEveryHopperKernel) {
  if (!test_long()) GTEST_SKIP() << "make test-long";
  for (const auto& kernel : emulator::sm90_forward_kernels())
    if (kernel.config.element == Element::f16 || kernel.config.element == Element::e4m3)
      expect_accounted_for("sm90_forward " + brief_text(kernel.config));
}
TEST(EmulatorMutants, OfEveryQuantizer) {
  if (!test_long()) GTEST_SKIP() << "make test-long";
  expect_accounted_for("quantize", 3);
}

TEST(EmulatorMutants, AnUnknownKernelIsNamed) {
  const auto reports = emulator_mutants("sm99_forward");
  ASSERT_FALSE(reports.ok());
  EXPECT_NE(reports.status().message().find("\"sm99_forward\""), std::string::npos);
}

}  // namespace
}  // namespace octavo
