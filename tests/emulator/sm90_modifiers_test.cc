// SPDX-License-Identifier: Apache-2.0
// Softcap, bias, ALiBi, mask tensors, sinks and padding in the Hopper kernels, against the oracle.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "emulator/kernels/sm90_forward.h"
#include "emulator/long.h"
#include "emulator/modified_case.h"
#include "evidence/cases/emulated_cases.h"
#include "gpu/forward/sm90_forward.h"
#include "gpu/jit/config_text.h"
#include "octavo/octavo.hpp"
#include "runtime/emulated/emulated_launch.h"

namespace octavo::evidence {
namespace {

// Those with a bias have every modifier, or all but a mask. In the others softcap and ALiBi are
// part of the exponent.
std::vector<const emulator::EmulatedSm90Forward*> modified_kernels(bool bias = true) {
  std::vector<const emulator::EmulatedSm90Forward*> kernels;
  for (const auto& kernel : emulator::sm90_forward_kernels())
    if (any(kernel.config.modifiers) && kernel.config.modifiers.block_mask == 0 &&
        kernel.config.head_dim_v == 0 && kernel.config.modifiers.bias == bias)
      kernels.push_back(&kernel);
  return kernels;
}

Status run(const emulator::EmulatedSm90Forward& kernel, ModifiedCase& c,
           const emulator::Settings& settings, const EmulatorThen& then) {
  const Result<Problem> problem = problem_of(c.arguments(), c.options());
  if (!problem.ok()) return problem.status();
  c.poison_outputs();
  return run_emulated(kernel, narrow_sm90_chip(), *problem, c.arguments(), settings, then);
}

void expect_right(const emulator::EmulatedSm90Forward& kernel, const ModifiedProblem& problem,
                  std::optional<std::uint64_t> seed = {}) {
  ModifiedCase c(problem);
  emulator::Settings settings;
  settings.seed = seed;
  const Status status = run(kernel, c, settings, [&](const emulator::Machine& machine) {
    EXPECT_TRUE(machine.report().clean()) << machine.report().text();
  });
  ASSERT_TRUE(status.ok()) << status.message();
  // Plans take no LSE from sums of the rounded P.
  EXPECT_EQ(c.judge(!kernel.config.sum_rounded_p), "") << brief_text(kernel.config);
}

enum Feature { kSoftcap, kBias, kMask, kAlibi, kSinks, kLeft, kRight, kFeatures };

// A problem for a kernel: more rows than a tile, several blocks for each split, a ragged end. The
// features are bits of `features`.
ModifiedProblem problem_for(const Sm90ForwardConfig& c, unsigned features, std::uint64_t seed) {
  const auto has = [features](Feature f) { return (features >> f & 1) != 0; };
  ModifiedProblem p;
  p.head_dim = c.head_dim - (seed % 3 == 0 ? 8 : 0);
  p.dtype = static_cast<DType>(c.element);
  p.batch = has(kLeft) || has(kRight) ? 3 : 2;
  p.heads_q = c.pack_gqa ? 6 : 2;
  p.heads_kv = 2;
  p.seqlen_q = c.pack_gqa ? 9 : sm90::is_split_kv(c) ? 70 : 64 + 9;
  p.seqlen_kv = sm90::kv_splits(c) * c.block_n + static_cast<std::int64_t>(seed % 2 + 7);
  constexpr Causal kCausals[] = {Causal::none, Causal::bottom_right, Causal::none,
                                 Causal::top_left};
  p.causal = kCausals[seed % 4];
  if (seed % 5 == 1) p.window_left = c.block_n / 2 + 3;
  if (seed % 7 == 3) p.scale = -0.4f;
  if (has(kSoftcap)) p.softcap = seed % 2 == 0 ? 1.5f : 30.0f;
  if (has(kBias)) p.bias = static_cast<DType>(c.modifiers.bias_element);
  p.mask = has(kMask) && c.modifiers.mask;
  p.alibi = has(kAlibi);
  p.sinks = has(kSinks);
  p.left = has(kLeft);
  p.right = has(kRight);
  if (seed % 4 == 1) p.broadcast = {0, 1, 0, 0};
  if (seed % 4 == 2) p.broadcast = {1, 0, 1, 0};
  if (seed % 4 == 3) p.broadcast = {1, 1, 0, seed % 8 == 3 ? 1 : 0};
  p.row_gap = static_cast<std::int64_t>(seed / 2 % 3) + (p.seqlen_kv % 2);
  if (c.modifiers.score_tiles) {  // TMA must load them
    p.row_gap = (16 - p.seqlen_kv % 16) % 16;
    p.broadcast[3] = 0;
    if (p.bias || p.mask) p.left = false;
  }
  p.seed = seed;
  return p;
}

// Each feature alone, every two, and all: the other features have neutral values. Every pair runs
// on one of the kernels; `make test-long`: on all.
TEST(EmulatorSm90Modifiers, EveryPairMatchesTheOracle) {
  const auto kernels = modified_kernels();
  ASSERT_GE(kernels.size(), 4U);
  std::uint64_t seed = 0;
  for (std::size_t k = 0; k < kernels.size(); ++k) {
    std::size_t pair = 0;
    for (unsigned first = 0; first < kFeatures; ++first)
      for (unsigned second = 0; second <= first; ++second, ++seed, ++pair) {
        if (pair % kernels.size() != k && !test_long()) continue;
        const unsigned features = 1U << first | 1U << second;
        SCOPED_TRACE(fmt::format("features {:#x} seed {}", features, seed));
        expect_right(*kernels[k], problem_for(kernels[k]->config, features, seed),
                     seed % 3 == 0 ? std::optional<std::uint64_t>(seed) : std::nullopt);
      }
    SCOPED_TRACE("all features");
    expect_right(*kernels[k], problem_for(kernels[k]->config, (1U << kFeatures) - 1, seed));
  }
}

// The features that a kernel without a bias has, each alone and all together.
TEST(EmulatorSm90Modifiers, ModifiersInTheExponent) {
  const auto kernels = modified_kernels(false);
  ASSERT_EQ(kernels.size(), 3U);
  for (const auto* kernel : kernels) {
    const ModifierConfig& m = kernel->config.modifiers;
    const unsigned all = (m.softcap ? 1U << kSoftcap : 0) | (m.alibi ? 1U << kAlibi : 0) |
                         (m.mask ? 1U << kMask : 0) | (m.sinks ? 1U << kSinks : 0) |
                         (m.padded ? 1U << kLeft | 1U << kRight : 0);
    for (std::uint64_t seed = 0; seed < (test_long() ? 16U : 4U); ++seed)
      for (const unsigned features :
           {all & 1U << kSoftcap, all & 1U << kAlibi, all & (1U << kSoftcap | 1U << kAlibi), all}) {
        if (features == 0) continue;
        SCOPED_TRACE(fmt::format("features {:#x} seed {}", features, seed));
        ModifiedProblem p = problem_for(kernel->config, features, seed);
        p.steep = seed == 2;
        expect_right(*kernel, p);
      }
  }
}

// Rows without a visible key, with a sink and without: no keys at all, hidden by the mask, and all
// of a sequence's keys behind the window.
TEST(EmulatorSm90Modifiers, RowsWithoutKeys) {
  for (const auto* kernel : modified_kernels())
    for (const bool sinks : {false, true}) {
      ModifiedProblem p = problem_for(kernel->config, 0, 2);
      p.sinks = sinks;
      p.causal = Causal::bottom_right;
      p.seqlen_q = kernel->config.pack_gqa ? 20 : 140;
      p.seqlen_kv = 9;
      expect_right(*kernel, p);
      p.mask = kernel->config.modifiers.mask;
      p.causal = Causal::none;
      p.seqlen_kv = 1;
      p.row_gap = 15;
      expect_right(*kernel, p);
      p.mask = false;
      p.seqlen_kv = 0;
      expect_right(*kernel, p);
    }
}

// Varlen batches have softcap, ALiBi and sinks; slopes are those of the sequence.
TEST(EmulatorSm90Modifiers, VarlenBatches) {
  for (const auto* kernel : modified_kernels()) {
    if (sm90::is_split_kv(kernel->config)) continue;
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      ModifiedProblem p =
          problem_for(kernel->config, 1U << kSoftcap | 1U << kAlibi | 1U << kSinks, seed);
      p.varlen = true;
      p.batch = 3;
      expect_right(*kernel, p);
    }
  }
}

// The lowest finite bias hides a key beside greater ones only: rows that have nothing else see all
// keys alike.
TEST(EmulatorSm90Modifiers, LowestFiniteBias) {
  for (const auto* kernel : modified_kernels())
    for (const std::uint64_t seed : {4, 5}) {
      if (kernel->config.modifiers.bias_element == Element::f16) continue;
      ModifiedProblem p = problem_for(kernel->config, 1U << kBias, seed);
      ModifiedCase c(p);
      c.set_bias_rows(-3.3e38f);
      const Status status = run(*kernel, c, {}, [](const emulator::Machine&) {});
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(c.judge(false), "") << brief_text(kernel->config);
    }
}

// Rows whose keys all have a huge bias see them alike, whatever the size of the bias; the rows
// between have none.
TEST(EmulatorSm90Modifiers, HugeBiases) {
  std::vector<float> levels = {-1.5e8f, -1e9f, -1.2e38f};
  if (test_long()) levels = {-1e4f, -1.5e8f, -1e9f, 1e9f, -1e20f, -1.2e38f, -2e38f, 2e38f};
  for (const auto* kernel : modified_kernels()) {
    if (kernel->config.modifiers.bias_element == Element::f16) continue;
    for (const float level : levels) {
      SCOPED_TRACE(testing::Message() << brief_text(kernel->config) << " " << level);
      ModifiedProblem p = problem_for(kernel->config, 1U << kBias, 4);
      p.batch = 1;
      p.scale = 1e-20f;  // FP64 would resolve scores that FP32 rounds away beside the bias
      ModifiedCase c(p);
      c.set_bias_rows(level);
      const Status status = run(*kernel, c, {}, [](const emulator::Machine&) {});
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(c.judge(), "");
    }
  }
}

// Keys with a huge bias have no weight beside keys of other levels, in whichever block they are.
TEST(EmulatorSm90Modifiers, HugeBiasesTogetherWithOthers) {
  std::vector<std::pair<float, float>> levels = {{-1e9f, 0.0f}, {-1.4e8f, -1.3e8f}};
  if (test_long())
    levels.insert(levels.end(), {{0.0f, -1e9f}, {-1e9f, -1e8f}, {0.0f, 1e9f}, {-3e38f, -1e9f}});
  for (const auto* kernel : modified_kernels()) {
    if (kernel->config.modifiers.bias_element == Element::f16) continue;
    for (const auto& [first, second] : levels) {
      SCOPED_TRACE(testing::Message()
                   << brief_text(kernel->config) << " " << first << " " << second);
      ModifiedProblem p = problem_for(kernel->config, 1U << kBias, 4);
      p.batch = 1;
      p.scale = 1e-20f;
      ModifiedCase c(p);
      c.set_bias_columns(first, second);
      const Status status = run(*kernel, c, {}, [](const emulator::Machine&) {});
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(c.judge(), "");
    }
  }
}

// A bias that rises along the keys by so much that every block has to rescale O, and scores that
// are all negative in log2 units.
TEST(EmulatorSm90Modifiers, RisingNegativeScores) {
  for (const auto* kernel : modified_kernels()) {
    ModifiedProblem p = problem_for(kernel->config, 1U << kAlibi, 8);
    p.steep = true;
    expect_right(*kernel, p);
  }
}

// With ALiBi blocks are visited from the diagonal on: downwards from the last one where a mask
// hides keys, and else both ways from the middle. Each mask has flat or steep slopes, `make
// test-long`: both.
TEST(EmulatorSm90Modifiers, BlocksFromTheDiagonal) {
  auto kernels = modified_kernels();
  for (const auto* kernel : modified_kernels(false))
    if (!kernel->config.modifiers.softcap) kernels.push_back(kernel);
  for (const auto* kernel : kernels) {
    const Sm90ForwardConfig& config = kernel->config;
    if (sm90::is_split_kv(config)) continue;
    for (const bool steep : {false, true})
      for (const Causal causal : {Causal::none, Causal::bottom_right, Causal::top_left})
        for (const std::int64_t window : {-1, config.block_n + 5}) {
          ModifiedProblem p = problem_for(config, 1U << kAlibi, 2);
          p.batch = p.heads_q = p.heads_kv = 1;
          p.seqlen_q = sm90::block_m(config) + 20;
          p.seqlen_kv = 4 * config.block_n + 9;
          if (!test_long() && steep != ((causal == Causal::top_left) == (window < 0))) continue;
          p.steep = steep;
          p.causal = causal;
          p.window_left = window;
          SCOPED_TRACE(
              fmt::format("steep {} causal {} window {}", steep, static_cast<int>(causal), window));
          expect_right(*kernel, p);
        }
  }
}

// A row of scores far beyond the softcap does not change the bits of its neighbours, whose scores
// take a polynomial, with ALiBi too where both are part of the exponent.
TEST(EmulatorSm90Modifiers, SoftcapOfARowDoesNotDependOnOtherRows) {
  auto kernels = modified_kernels();
  for (const auto* kernel : modified_kernels(false))
    if (kernel->config.modifiers.softcap) kernels.push_back(kernel);
  for (const auto* kernel : kernels) {
    ModifiedProblem p = problem_for(kernel->config, 0, 4);
    p.softcap = 10;
    p.alibi = !kernel->config.modifiers.bias && kernel->config.modifiers.alibi;
    ModifiedCase c(p);
    const auto run_once = [&] {
      const Status status = run(*kernel, c, {}, [](const emulator::Machine&) {});
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(c.judge(), "") << brief_text(kernel->config);
    };
    run_once();
    const std::vector<std::uint16_t> neighbour = c.output_row(1), changed = c.output_row(0);
    c.multiply_query(0, 50);
    run_once();
    EXPECT_EQ(c.output_row(1), neighbour) << brief_text(kernel->config);
    EXPECT_NE(c.output_row(0), changed) << brief_text(kernel->config);
  }
}

// Lengths on a GPU are never trusted: whatever they hold, sequences lie inside their tensors.
TEST(EmulatorSm90Modifiers, LengthsAreClamped) {
  for (const auto* kernel : modified_kernels()) {
    ModifiedCase c(problem_for(kernel->config, 1U << kLeft | 1U << kRight, 1));
    const auto run_clean = [&] {
      const Status status = run(*kernel, c, {}, [&](const emulator::Machine& machine) {
        EXPECT_TRUE(machine.report().clean()) << machine.report().text();
      });
      EXPECT_TRUE(status.ok()) << status.message();
      return c.outputs();
    };
    c.widen_lengths(0);
    const std::vector<std::byte> expected = run_clean();
    c.widen_lengths(1000);
    EXPECT_TRUE(run_clean() == expected) << brief_text(kernel->config);
  }
}

// A plan on an emulated H200 takes these kernels for 16-bit problems, and the sm80 family for 8-bit
// ones.
TEST(EmulatorSm90Modifiers, PlansTakeTheHopperKernel) {
  constexpr Device kSm90{Device::Kind::emulator, 90};
  ModifiedProblem made;
  made.seqlen_q = made.seqlen_kv = 100;
  made.softcap = 20;
  made.bias = DType::f16;
  made.mask = made.alibi = made.sinks = made.right = true;
  ModifiedCase c(made);
  const Result<Problem> problem = problem_of(c.arguments(), c.options());
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  const Result<Explanation> explained = explain(*problem, kSm90);
  ASSERT_TRUE(explained.ok()) << explained.status().message();
  EXPECT_EQ(explained->kernel, "sm90_forward");
  EXPECT_NE(explained->config.find(".softcap=true,.bias=true,.bias_element=Element::f16"),
            std::string::npos);
  for (int i = 0; i < 2; ++i) {
    c.poison_outputs();
    const Status status = attention(c.arguments(), c.options(), kSm90);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(c.judge(), "");
  }
  Problem in_8_bits = *problem;
  in_8_bits.padded = false;
  in_8_bits.q = in_8_bits.k = in_8_bits.v = DType::e4m3;
  EXPECT_EQ(explain(in_8_bits, kSm90).value().kernel, "sm80_forward");
}

// A plan whose kernel takes tiles of bias and mask also serves a call whose tensors TMA cannot
// load.
TEST(EmulatorSm90Modifiers, PlansWithTilesServeEveryLayout) {
  constexpr Device kSm90{Device::Kind::emulator, 90};
  for (const std::int64_t row_gap : {12, 1}) {
    ModifiedProblem made;
    made.seqlen_q = 192;
    made.seqlen_kv = 500;
    made.bias = DType::bf16;
    made.mask = true;
    made.row_gap = row_gap;
    ModifiedCase c(made);
    Options options = c.options();
    options.batch_invariant = true;  // a kernel for large grids
    const Result<Problem> problem = problem_of(c.arguments(), options);
    ASSERT_TRUE(problem.ok()) << problem.status().message();
    const Explanation explained = explain(*problem, kSm90).value();
    EXPECT_NE(explained.config.find(".score_tiles=true"), std::string::npos) << explained.config;
    EXPECT_EQ(sm90_forward_has_score_tiles(c.arguments()), row_gap == 12);
    c.poison_outputs();
    const Status status = attention(c.arguments(), options, kSm90);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(c.judge(), "");
  }
}

}  // namespace
}  // namespace octavo::evidence
