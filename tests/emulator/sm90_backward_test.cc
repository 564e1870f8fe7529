// SPDX-License-Identifier: Apache-2.0
// The Hopper backward kernels in the emulator: gradients against fp64, hazards, and what hostile
// memory may not change.
#include "emulator/kernels/sm90_backward.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <optional>

#include "emulator/backward_case.h"
#include "emulator/backward_checks.h"
#include "emulator/long.h"
#include "gpu/backward/sm80_backward.h"
#include "runtime/emulated/emulated_backward.h"
#include "runtime/emulated/emulated_gpu.h"

namespace octavo {
namespace {

// With fewer SMs, fewer tiles may wait for each other in a circle, and groups have fewer heads.
GpuInfo h200_with(int sms = 132) {
  GpuInfo chip = emulated_gpu({Device::Kind::emulator, 90}).value()->info;
  chip.sms = sms;
  return chip;
}

// The tiles for a problem with keys for every SM, or the small ones for one with few keys.
enum class Tiles { of_many_keys, of_few_keys };

ChosenSm90Backward chosen_for(const Problem& problem, Tiles tiles) {
  constexpr int kOneSm = 1, kManySms = 1 << 20;
  return choose_sm90_backward(problem, tiles == Tiles::of_few_keys ? kManySms : kOneSm);
}

// Runs the three launches.
Status launch_on_h200(BackwardCase& c, const GpuInfo& chip, Tiles tiles,
                      const emulator::Settings& settings, const EmulatorThen& then) {
  const Problem problem = c.problem();
  EXPECT_TRUE(sm90_backward_serves(problem, chip));
  EXPECT_TRUE(sm90_backward_reaches(c.arguments()));
  const ChosenSm90Backward chosen = chosen_for(problem, tiles);
  // NaN until the kernels write it.
  const std::size_t bytes = sm90_backward_workspace(problem, c.shape.seqlen_q, chosen).total;
  constexpr std::size_t kAlignment = 256;
  std::vector<float> workspace((bytes + kAlignment) / sizeof(float),
                               std::numeric_limits<float>::quiet_NaN());
  void* aligned = workspace.data();
  std::size_t room = workspace.size() * sizeof(float);
  EXPECT_NE(std::align(kAlignment, bytes, aligned, room), nullptr);
  const ExaminedLaunches examined(settings, then);
  return run_emulated_sm90_backward(chosen, chip, problem, c.arguments(), aligned);
}

// The same; every launch must be free of hazards.
void run_on_h200(BackwardCase& c, const GpuInfo& chip = h200_with(),
                 Tiles tiles = Tiles::of_many_keys, std::optional<std::uint64_t> seed = {}) {
  emulator::Settings settings;
  settings.seed = seed;
  const Status status =
      launch_on_h200(c, chip, tiles, settings, [](const emulator::Machine& machine) {
        EXPECT_TRUE(machine.report().clean()) << machine.report().text();
      });
  ASSERT_TRUE(status.ok()) << status.message();
}

void check_on_h200(const BackwardShape& shape, const GpuInfo& chip = h200_with(),
                   Tiles tiles = Tiles::of_many_keys) {
  BackwardCase c(shape);
  run_on_h200(c, chip, tiles);
  if (!testing::Test::HasFatalFailure()) expect_gradients(c);
}

// Three blocks of keys by two or three of queries, on a chip where their order is a circle and on
// one where it is not. With 64 columns there are two partial sums of dQ.
TEST(EmulatorSm90Backward, FullAttention) {
  for (const std::int64_t head_dim : {64, 128, 256})
    for (const int sms : {132, 2}) {
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << ", SMs " << sms);
      check_on_h200({.seqlen_q = 150, .seqlen_kv = 270, .head_dim = head_dim}, h200_with(sms));
    }
}

// Widths with fewer columns than their panels, or with more slices of dQ in one half, and the tiles
// of 64 keys for problems with few of them: on a chip where the order of dQ is a circle, and one
// where it is not, under a mask and in a varlen batch with shared KV heads.
void check_edges(std::int64_t head_dim, Tiles tiles) {
  SCOPED_TRACE(head_dim);
  check_on_h200({.seqlen_q = 150, .seqlen_kv = 150, .head_dim = head_dim}, h200_with(), tiles);
  check_on_h200({.heads_q = 2,
                 .heads_kv = 2,
                 .seqlen_q = 100,
                 .seqlen_kv = 140,
                 .head_dim = head_dim,
                 .options = {.causal = Causal::bottom_right}},
                h200_with(4), tiles);
  check_on_h200({.heads_q = 2,
                 .heads_kv = 1,
                 .seqlen_q = 90,
                 .seqlen_kv = 150,
                 .head_dim = head_dim,
                 .cu_q = {0, 20, 20, 90},
                 .cu_kv = {0, 15, 30, 145},
                 .max_q = 70,
                 .max_kv = 115},
                h200_with(), tiles);
}

TEST(EmulatorSm90Backward, WidthsBetweenPowersOfTwo) {
  for (const std::int64_t head_dim : {80, 96, 192}) check_edges(head_dim, Tiles::of_many_keys);
}

// Two CTAs exchange dS. The second one may have no keys, or see fewer blocks of queries.
TEST(EmulatorSm90Backward, PairsOfCtas) {
  check_edges(256, Tiles::of_many_keys);
  for (const int sms : {132, 4})
    for (const std::int64_t seqlen_kv : {30, 192}) {
      SCOPED_TRACE(testing::Message() << "keys " << seqlen_kv << ", SMs " << sms);
      check_on_h200({.seqlen_q = 200, .seqlen_kv = seqlen_kv, .head_dim = 256}, h200_with(sms));
    }
  for (const Options& options :
       {Options{.causal = Causal::top_left}, Options{.window_left = 20, .window_right = 10}})
    check_on_h200({.seqlen_q = 200, .seqlen_kv = 200, .head_dim = 256, .options = options});
}

TEST(EmulatorSm90Backward, FewKeys) {
  for (const std::int64_t head_dim : {64, 128}) check_edges(head_dim, Tiles::of_few_keys);
}

TEST(EmulatorSm90Backward, Bf16) {
  for (const std::int64_t head_dim : {64, 128, 256})
    check_on_h200({.seqlen_q = 40, .seqlen_kv = 140, .head_dim = head_dim, .dtype = DType::bf16});
}

TEST(EmulatorSm90Backward, NarrowHeads) {
  for (const std::int64_t head_dim : {8, 40, 80, 136}) {
    SCOPED_TRACE(head_dim);
    check_on_h200({.seqlen_q = 67,
                   .seqlen_kv = 70,
                   .head_dim = head_dim,
                   .options = {.causal = Causal::top_left},
                   .row_gap = 8});
  }
}

// Also rows that see no key, and blocks of queries that no block of keys visits.
TEST(EmulatorSm90Backward, Masks) {
  const Options masks[] = {
      {.causal = Causal::top_left},
      {.causal = Causal::bottom_right},
      {.window_left = 20, .window_right = 10},
      {.window_left = 5},
      {.causal = Causal::top_left, .window_left = 33},
  };
  const std::pair<std::int64_t, std::int64_t> lengths[] = {{70, 200}, {300, 140}};
  for (const Options& options : masks)
    for (const auto& [seqlen_q, seqlen_kv] : lengths) {
      SCOPED_TRACE(testing::Message()
                   << static_cast<int>(options.causal) << " " << options.window_left << " "
                   << options.window_right << " " << seqlen_q << " x " << seqlen_kv);
      check_on_h200(
          {.seqlen_q = seqlen_q, .seqlen_kv = seqlen_kv, .head_dim = 16, .options = options});
    }
}

// Three KV heads, in one group or in groups of two and one, which take their blocks in opposite
// orders.
TEST(EmulatorSm90Backward, GroupsOfHeads) {
  for (const std::int64_t head_dim : {32, 128, 192})
    for (const int sms : {132, 4}) {
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << ", SMs " << sms);
      check_on_h200({.heads_q = 6,
                     .heads_kv = 3,
                     .seqlen_q = 70,
                     .seqlen_kv = 140,
                     .head_dim = head_dim,
                     .options = {.causal = Causal::bottom_right}},
                    h200_with(sms));
    }
}

TEST(EmulatorSm90Backward, ScalesOfEverySign) {
  for (const float scale : {-0.3f, 0.0f})
    check_on_h200({.seqlen_q = 20, .seqlen_kv = 30, .head_dim = 32, .scale = scale});
}

// Sequences of length 0 on either side, and tokens of no sequence, which hold NaN.
TEST(EmulatorSm90Backward, VarlenBatch) {
  for (const Causal causal : {Causal::none, Causal::bottom_right})
    for (const std::int64_t head_dim : {64, 128, 256})
      check_on_h200({.heads_q = 2,
                     .heads_kv = 1,
                     .seqlen_q = 130,
                     .seqlen_kv = 220,
                     .head_dim = head_dim,
                     .options = {.causal = causal},
                     .cu_q = {3, 3, 50, 51, 51, 121},
                     .cu_kv = {2, 12, 45, 45, 60, 215},
                     .max_q = 70,
                     .max_kv = 155});
}

// A grid that the lengths on the device do not fill.
TEST(EmulatorSm90Backward, VarlenBatchWithLargeMaximum) {
  check_on_h200({.seqlen_q = 40,
                 .seqlen_kv = 50,
                 .head_dim = 128,
                 .cu_q = {0, 17, 40},
                 .cu_kv = {0, 30, 50},
                 .max_q = 200,
                 .max_kv = 300});
}

// cu_seqlens that decrease or leave the tensors reach no memory outside and no token twice.
TEST(EmulatorSm90Backward, HostileSeqlens) {
  for (const Causal causal : {Causal::none, Causal::top_left})
    check_on_h200({.seqlen_q = 60,
                   .seqlen_kv = 160,
                   .head_dim = 16,
                   .options = {.causal = causal},
                   .cu_q = {0, 20, 5, 2147483647},
                   .cu_kv = {-2147483647, 30, 190, 7},
                   .max_q = 60,
                   .max_kv = 160});
}

// NaN in the tokens of the next sequence does not change the gradients of this one.
TEST(EmulatorSm90Backward, NanInTheNextSequence) {
  BackwardShape shape{.seqlen_q = 60,
                      .seqlen_kv = 60,
                      .head_dim = 128,
                      .cu_q = {0, 30, 60},
                      .cu_kv = {0, 25, 60},
                      .max_q = 30,
                      .max_kv = 35};
  BackwardCase c(shape);
  const BackwardCase::Gradients expected = c.reference();
  for (std::int64_t d = 0; d < shape.head_dim; ++d) {
    c.q.bits(0, 0, 30, d) = c.dout.bits(0, 0, 31, d) = HostTensor::kNan;
    c.k.bits(0, 0, 25, d) = c.v.bits(0, 0, 26, d) = HostTensor::kNan;
  }
  run_on_h200(c);
  const auto head = [&](HostTensor& found, const std::vector<double>& all, std::int64_t rows,
                        const char* what) {
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t d = 0; d < shape.head_dim; ++d)
        ASSERT_NEAR(found.at(0, 0, i, d), all[c.index(0, 1, 0, shape.seqlen_q, i, d)], 2e-2)
            << what << " " << i << " " << d;
  };
  head(c.dq, expected.dq, 30, "dq");
  head(c.dk, expected.dk, 25, "dk");
  head(c.dv, expected.dv, 25, "dv");
}

TEST(EmulatorSm90Backward, SameBitsUnderEverySchedule) {
  const int seeds = test_long() ? 20 : 1;
  for (const std::int64_t head_dim : {64, 128, 256})
    for (const Causal causal : {Causal::none, Causal::top_left}) {
      // Under a mask, each head is a group of its own.
      const GpuInfo chip = h200_with(causal == Causal::none ? 132 : 4);
      const BackwardShape shape{.heads_q = 2,
                                .heads_kv = 2,
                                .seqlen_q = 140,
                                .seqlen_kv = 270,
                                .head_dim = head_dim,
                                .options = {.causal = causal}};
      BackwardCase first(shape);
      run_on_h200(first, chip);
      for (int seed = 0; seed < seeds; ++seed) {
        BackwardCase c(shape);
        run_on_h200(c, chip, Tiles::of_many_keys, static_cast<std::uint64_t>(seed));
        EXPECT_TRUE(c.dq.data() == first.dq.data()) << seed;
        EXPECT_TRUE(c.dk.data() == first.dk.data()) << seed;
        EXPECT_TRUE(c.dv.data() == first.dv.data()) << seed;
      }
    }
}

// More blocks of queries than stages, whose order is a circle, with two tiles that add to the same
// partial sum; both ends of a window; lengths on the device that must be clamped, and sequences
// that end inside of a block; and scores so low that exp2(-LSE) is infinite for the keys behind the
// last one.
std::vector<BackwardShape> h200_mutant_shapes(std::int64_t head_dim) {
  const std::int64_t three_blocks = head_dim <= 64 ? 300 : 150;
  const std::int64_t two_tiles_of_a_sum = head_dim <= 64 ? 270 : 150;
  const BackwardShape varlen{.heads_q = 2,
                             .heads_kv = 1,
                             .seqlen_q = 90,
                             .seqlen_kv = 90,
                             .head_dim = head_dim,
                             .options = {.causal = Causal::bottom_right},
                             .cu_q = {-7, 20, 5, 60, 2147483647},
                             .cu_kv = {0, 30, 30, 7, 100},
                             .max_q = 64,
                             .max_kv = 64};
  BackwardShape truncated = varlen;
  truncated.max_q = truncated.max_kv = 25;
  return {
      {.seqlen_q = three_blocks, .seqlen_kv = two_tiles_of_a_sum, .head_dim = head_dim},
      varlen,
      truncated,
      {.seqlen_q = 150,
       .seqlen_kv = 270,
       .head_dim = head_dim,
       .options = {.causal = Causal::top_left, .window_left = 20}},
      {.seqlen_q = 20, .seqlen_kv = 1, .head_dim = head_dim, .scale = 50.0f},
  };
}

void expect_every_h200_call_needed(std::int64_t head_dim, Tiles tiles = Tiles::of_many_keys) {
  const BackwardLaunch launch = [tiles](BackwardCase& c, const emulator::Settings& settings,
                                        const EmulatorThen& then) {
    return launch_on_h200(c, h200_with(), tiles, settings, then);
  };
  expect_every_call_needed(launch, h200_mutant_shapes(head_dim));
}

TEST(EmulatorSm90Backward, EveryMutantIsDetected) { expect_every_h200_call_needed(64); }
// A warpgroup computes columns of dQ instead of queries.
TEST(EmulatorSm90Backward, EveryMutantOfWideHeadsIsDetected) {
  if (!test_long()) GTEST_SKIP() << "OCTAVO_TEST_LONG is not set";
  expect_every_h200_call_needed(128);
}
// Two warpgroups of each of two CTAs divide the products.
TEST(EmulatorSm90Backward, EveryMutantOfPairsIsDetected) {
  if (!test_long()) GTEST_SKIP() << "OCTAVO_TEST_LONG is not set";
  expect_every_h200_call_needed(256);
}
// The last warps have no columns of dQ.
TEST(EmulatorSm90Backward, EveryMutantOf96ColumnsIsDetected) {
  if (!test_long()) GTEST_SKIP() << "OCTAVO_TEST_LONG is not set";
  expect_every_h200_call_needed(96);
}
// Two warpgroups divide the products, and the halves of dQ have different slices.
TEST(EmulatorSm90Backward, EveryMutantOf192ColumnsIsDetected) {
  if (!test_long()) GTEST_SKIP() << "OCTAVO_TEST_LONG is not set";
  expect_every_h200_call_needed(192);
}
TEST(EmulatorSm90Backward, EveryMutantOfFewKeysIsDetected) {
  if (!test_long()) GTEST_SKIP() << "OCTAVO_TEST_LONG is not set";
  for (const std::int64_t head_dim : {64, 128})
    expect_every_h200_call_needed(head_dim, Tiles::of_few_keys);
}

}  // namespace
}  // namespace octavo
