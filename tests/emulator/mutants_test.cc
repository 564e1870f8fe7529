// SPDX-License-Identifier: Apache-2.0
// Every wait, barrier and mask term of the kernels is needed, or marked as not needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "emulator/kernels/decode.h"
#include "emulator/kernels/sm90_forward.h"
#include "emulator/long.h"
#include "evidence/cases/emulated_cases.h"
#include "gpu/jit/config_text.h"
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

// Kernels that divide the keys among warps have every kind of barrier; sim8 also clears its
// padding.
TEST(EmulatorMutants, KernelsThatDivideKeysAmongWarps) {
  expect_accounted_for("block_m=32,warps_m=2,warps_n=4");
  expect_accounted_for("element=sim8,block_m=32,warps_m=2,warps_n=4");
}

// 8-bit output has rows of half as many bytes, and the maxima of its CTAs need an atomic.
TEST(EmulatorMutants, KernelWith8BitOutputAndAmax) {
  expect_accounted_for("block_m=32,warps_m=2,warps_n=4,output.element=e4m3,output.amax=true");
}

// Every wait of a warp for its own copies, and the barriers at the end of a work tile; the kernel
// that combines partial results waits for the grid before it. The CTAs of a cluster wait until the
// barriers of all are ready, and for the parts.
TEST(EmulatorMutants, DecodeKernels) {
  expect_accounted_for("decode head_dim=64");
  for (const auto& kernel : emulator::decode_kernels())
    if (kernel.config.clusters && kernel.config.kv == kernel.config.element)
      expect_accounted_for(to_text(kernel.config));
}

// The rows of the last CTA, sequences without room, and the wait for CTAs that read the lengths.
TEST(EmulatorMutants, AppendKernels) {
  expect_accounted_for("append to=e4m3", 7);
  if (test_long()) expect_accounted_for("append", 7);
}

// The ends of padding, lengths of any value, and hidden keys.
TEST(EmulatorMutants, KernelWithEveryModifier) {
  expect_accounted_for(
      "block_m=32,warps_m=2,warps_n=4,modifiers.softcap=true,modifiers.bias=true,"
      "modifiers.alibi=true,modifiers.mask=true,modifiers.sinks=true,modifiers.padded=true");
}

// The smallest kernel that divides keys over a cluster, and the smallest with a producer warp.
TEST(EmulatorMutants, MutantsOfHopperKernelsAreCaught) {
  const auto work = [](const Sm90ForwardConfig& c) {
    return c.warpgroups * c.head_dim * c.block_n * c.stages * (c.element == Element::f16 ? 1 : 2);
  };
  const emulator::EmulatedSm90Forward* clustered = nullptr;
  const emulator::EmulatedSm90Forward* loading = nullptr;
  for (const auto& kernel : emulator::sm90_forward_kernels()) {
    if (sm90::is_split_kv(kernel.config) && kernel.config.cluster == 1) continue;
    const auto*& least = sm90::is_split_kv(kernel.config) ? clustered : loading;
    if (least == nullptr || work(kernel.config) < work(least->config)) least = &kernel;
  }
  for (const auto* kernel : {clustered, loading}) {
    ASSERT_NE(kernel, nullptr);
    expect_accounted_for("sm90_forward " + brief_text(kernel->config));
  }
}

// The first kernel that `takes` accepts.
template <class Takes>
const emulator::EmulatedSm90Forward* first_sm90_kernel(const Takes& takes) {
  for (const auto& kernel : emulator::sm90_forward_kernels())
    if (takes(kernel.config)) return &kernel;
  return nullptr;
}

// With pack_gqa, rows of each head end separately.
TEST(EmulatorMutants, HopperKernelWithPackGqa) {
  const auto* const kernel = first_sm90_kernel([](const Sm90ForwardConfig& c) {
    return c.pack_gqa && c.head_dim == 64 && !c.output.amax && !sm90::is_8bit_qk(c);
  });
  ASSERT_NE(kernel, nullptr);
  expect_accounted_for("sm90_forward " + brief_text(kernel->config));
}

// Every modifier and padding, with a producer warp and with split-KV.
TEST(EmulatorMutants, HopperKernelsWithEveryModifier) {
  if (!test_long()) GTEST_SKIP() << "make test-long";
  for (const bool split : {false, true}) {
    const auto* const kernel = first_sm90_kernel([split](const Sm90ForwardConfig& c) {
      return any(c.modifiers) && c.head_dim == 64 && sm90::is_split_kv(c) == split;
    });
    ASSERT_NE(kernel, nullptr);
    expect_accounted_for("sm90_forward " + brief_text(kernel->config));
  }
}

// Slices of K, and two tiles of V's columns.
TEST(EmulatorMutants, HopperKernelWithSlicesOfK) {
  const auto* const kernel =
      first_sm90_kernel([](const Sm90ForwardConfig& c) { return c.head_dim == 512; });
  ASSERT_NE(kernel, nullptr);
  if (!test_long()) GTEST_SKIP() << "make test-long";
  expect_accounted_for("sm90_forward " + brief_text(kernel->config));
}

// Bits, and what the producer says of each block; and of two blocks, with a scale for each key.
TEST(EmulatorMutants, HopperKernelsWithABlockMask) {
  const auto* const kernel =
      first_sm90_kernel([](const Sm90ForwardConfig& c) { return c.modifiers.block_mask == 64; });
  const auto* const pairs = first_sm90_kernel([](const Sm90ForwardConfig& c) {
    return c.modifiers.block_mask == 64 && c.k_scales == KScales::row;
  });
  for (const auto* each : {kernel, pairs}) {
    ASSERT_NE(each, nullptr);
    if (each == kernel && !test_long()) continue;
    expect_accounted_for("sm90_forward " + brief_text(each->config));
  }
}

// Disables each call of an instruction that is not marked as spare: some case must have a hazard.
// Returns the number of these calls.
int expect_detected(const std::vector<evidence::EmulatedCase>& cases,
                    std::string_view instruction) {
  std::vector<emulator::Place> calls;
  for (const evidence::EmulatedCase& c : cases)
    EXPECT_TRUE(c.run({}, [&](const emulator::Machine& machine) {
                   for (const auto& use : machine.calls())
                     if (use.place.instruction == instruction && use.spare == nullptr &&
                         std::find(calls.begin(), calls.end(), use.place) == calls.end())
                       calls.push_back(use.place);
                 }).ok());
  for (const emulator::Place& call : calls) {
    emulator::Settings settings;
    settings.mutant = call;
    bool detected = false;
    for (std::size_t i = 0; i < cases.size() && !detected; ++i)
      EXPECT_TRUE(cases[i]
                      .run(settings,
                           [&](const emulator::Machine& machine) {
                             detected = detected || !machine.report().clean();
                           })
                      .ok());
    EXPECT_TRUE(detected) << describe(call) << " survives";
  }
  return static_cast<int>(calls.size());
}

// A launch may start before earlier grids have ended: every access to memory must wait for them.
TEST(EmulatorMutants, DisabledGridWaitsAreDetected) {
  for (const bool split : {false, true})
    for (const Element element : {Element::f16, Element::e4m3}) {
      const auto* const kernel = first_sm90_kernel([&](const Sm90ForwardConfig& c) {
        return sm90::is_split_kv(c) == split && c.element == element && c.v_element == element;
      });
      ASSERT_NE(kernel, nullptr);
      if (split != (element == Element::e4m3) && !test_long()) continue;
      const std::string name = "sm90_forward " + brief_text(kernel->config);
      const auto subjects = evidence::subjects_by_name(name);
      ASSERT_TRUE(subjects.ok()) << subjects.status().message();
      const Result<std::vector<evidence::EmulatedCase>> cases = subjects->at(0).make_cases();
      ASSERT_TRUE(cases.ok()) << cases.status().message();
      EXPECT_GE(expect_detected(*cases, "griddepcontrol.wait"), 1) << name;
    }
}

// 8-bit, with a scale per key; with FP16 scores.
TEST(EmulatorMutants, HopperKernelsIn8Bits) {
  if (!test_long()) GTEST_SKIP() << "make test-long";
  const emulator::EmulatedSm90Forward* clustered = nullptr;
  const emulator::EmulatedSm90Forward* loading = nullptr;
  const emulator::EmulatedSm90Forward* in_pairs = nullptr;
  for (const auto& kernel : emulator::sm90_forward_kernels()) {
    const Sm90ForwardConfig& c = kernel.config;
    if (sm90::is_mixed(c)) continue;
    if (c.element == Element::e4m3 && c.k_scales == KScales::row && c.head_dim == 64)
      (sm90::is_split_kv(c) ? clustered : loading) = &kernel;
    if (c.scores == ScoreType::f16 && !sm90::is_split_kv(c)) in_pairs = &kernel;
  }
  for (const auto* kernel : {clustered, loading, in_pairs}) {
    ASSERT_NE(kernel, nullptr);
    expect_accounted_for("sm90_forward " + brief_text(kernel->config));
  }
}

// 8-bit Q and K with 16-bit V, with a scale per block of keys.
TEST(EmulatorMutants, MixedHopperKernels) {
  if (!test_long()) GTEST_SKIP() << "make test-long";
  const emulator::EmulatedSm90Forward* clustered = nullptr;
  const emulator::EmulatedSm90Forward* loading = nullptr;
  for (const auto& kernel : emulator::sm90_forward_kernels()) {
    const Sm90ForwardConfig& c = kernel.config;
    if (!sm90::is_mixed(c) || c.k_scales != KScales::block || c.head_dim != 64) continue;
    if (c.cluster > 1 && c.element == Element::int8) clustered = &kernel;
    if (!sm90::is_split_kv(c) && c.v_element == Element::f16 && c.element == Element::e4m3)
      loading = &kernel;
  }
  for (const auto* kernel : {clustered, loading}) {
    ASSERT_NE(kernel, nullptr);
    expect_accounted_for("sm90_forward " + brief_text(kernel->config));
  }
}

// Scales per row need no barrier, only the ends of rows; scales per channel have both.
TEST(EmulatorMutants, MutantsOfQuantizersAreCaught) {
  expect_accounted_for("quantize to=e4m3", 4);
  expect_accounted_for("quantize group=channel,amax_pass=true", 3);
  expect_accounted_for("quantize to=e4m3,group=channel,threads=256,transposed=true", 4);
  if (!test_long()) return;
  // Early launch, ends of all three operands, the maxima of a cluster.
  const std::string all = "quantize to=e4m3,group=head";
  const std::string shared = ",threads=256,transposed=true,operands=true";
  expect_accounted_for(all + ",amax_pass=true" + shared, 8);
  expect_accounted_for(all + shared, 8);
  expect_accounted_for(all + shared + ",one_pass=true", 12);
  // A smoothed K: the ends of its rows, also if they are 0.
  expect_accounted_for("quantize mean_pass=1", 2);
  expect_accounted_for("quantize to=e4m3,smooth=true", 5);
  expect_accounted_for(all + shared + ",one_pass=true,smooth=true", 12);
  expect_accounted_for(all + ",amax_pass=true" + shared + ",smooth=true", 8);
  expect_accounted_for("quantize group=head,amax_pass=true,smooth=true", 4);
  expect_accounted_for("quantize group=block,smooth=true", 6);
}

TEST(EmulatorMutants, EverySm80Kernel) {
  if (!test_long()) GTEST_SKIP() << "make test-long";
  expect_accounted_for("sm80_forward");
}
// Those of bf16 and e5m2 are the same lines.
TEST(EmulatorMutants, EveryHopperKernel) {
  if (!test_long()) GTEST_SKIP() << "make test-long";
  for (const auto& kernel : emulator::sm90_forward_kernels())
    if (kernel.config.element == Element::f16 || kernel.config.element == Element::e4m3)
      expect_accounted_for("sm90_forward " + brief_text(kernel.config));
}
TEST(EmulatorMutants, MutantsOfEveryQuantizerAreCaught) {
  if (!test_long()) GTEST_SKIP() << "make test-long";
  expect_accounted_for("quantize", 3);
}

TEST(EmulatorMutants, UnknownKernelIsNamed) {
  const auto reports = emulator_mutants("sm99_forward");
  ASSERT_FALSE(reports.ok());
  EXPECT_NE(reports.status().message().find("\"sm99_forward\""), std::string::npos);
}

}  // namespace
}  // namespace octavo
