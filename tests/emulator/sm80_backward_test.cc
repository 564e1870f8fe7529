// SPDX-License-Identifier: Apache-2.0
// The sm80 backward kernels in the emulator: gradients against fp64, hazards, and what hostile
// memory may not change.
#include "emulator/kernels/sm80_backward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "config/sm80_backward_tiles.h"
#include "emulator/backward_case.h"
#include "emulator/backward_checks.h"
#include "emulator/long.h"
#include "gpu/backward/sm80_backward.h"
#include "runtime/emulated/emulated_backward.h"
#include "runtime/emulated/emulated_gpu.h"

namespace octavo {
namespace {

const GpuInfo& l4() { return emulated_gpu({Device::Kind::emulator, 0}).value()->info; }
const GpuInfo& h200() { return emulated_gpu({Device::Kind::emulator, 90}).value()->info; }

ChosenSm80Backward chosen_for(BackwardCase& c, const GpuInfo& chip) {
  return choose_sm80_backward(c.problem(), chip, row_alignment(c.arguments()));
}

// Runs the three launches.
Status launch(BackwardCase& c, const ChosenSm80Backward& chosen, const GpuInfo& chip,
              const emulator::Settings& settings, const EmulatorThen& then) {
  const Problem problem = c.problem();
  const Status serves = sm80_backward_serves(problem);
  if (!serves.ok()) return serves;
  // NaN until the kernels write it.
  const std::size_t bytes = row_stats_bytes(problem);
  std::vector<float> workspace(bytes / sizeof(float) + 4, std::numeric_limits<float>::quiet_NaN());
  void* aligned = workspace.data();
  std::size_t room = workspace.size() * sizeof(float);
  std::align(16, bytes, aligned, room);
  const ExaminedLaunches examined(settings, then);
  return run_emulated_backward(chosen, chip, problem, c.arguments(), aligned);
}

// The same; every launch must be free of hazards.
void run(BackwardCase& c, const ChosenSm80Backward& chosen, const GpuInfo& chip,
         std::optional<std::uint64_t> seed = {}) {
  emulator::Settings settings;
  settings.seed = seed;
  const Status status = launch(c, chosen, chip, settings, [](const emulator::Machine& machine) {
    EXPECT_TRUE(machine.report().clean()) << machine.report().text();
  });
  ASSERT_TRUE(status.ok()) << status.message();
}

void check(const BackwardShape& shape, const GpuInfo& chip = l4(),
           std::optional<std::uint64_t> seed = {}) {
  BackwardCase c(shape);
  run(c, chosen_for(c, chip), chip, seed);
  if (!testing::Test::HasFatalFailure()) expect_gradients(c);
}

TEST(EmulatorSm80Backward, FullAttention) { check({.seqlen_q = 70, .seqlen_kv = 150}); }

TEST(EmulatorSm80Backward, Bf16) {
  check({.heads_q = 2, .seqlen_q = 40, .seqlen_kv = 40, .dtype = DType::bf16});
}

// Each tile of the table, on the chip whose shared memory it is for.
TEST(EmulatorSm80Backward, EveryHeadDim) {
  for (const std::int64_t head_dim : {8, 64, 72, 96, 128, 160, 192, 200, 256})
    for (const GpuInfo* chip : {&l4(), &h200()}) {
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << " sm_" << chip->arch);
      check({.seqlen_q = 67,
             .seqlen_kv = 70,
             .head_dim = head_dim,
             .options = {.causal = Causal::top_left}},
            *chip);
    }
}

TEST(EmulatorSm80Backward, Masks) {
  const Options masks[] = {
      {.causal = Causal::top_left},
      {.causal = Causal::bottom_right},
      {.window_left = 20, .window_right = 10},
      {.window_left = 0, .window_right = 0},
      {.window_left = 5},
      {.window_right = 7},
      {.causal = Causal::top_left, .window_left = 33},
      {.causal = Causal::bottom_right, .window_left = 40},
  };
  const std::pair<std::int64_t, std::int64_t> lengths[] = {{70, 140}, {140, 70}};
  for (const Options& options : masks)
    for (const auto& [seqlen_q, seqlen_kv] : lengths) {
      SCOPED_TRACE(testing::Message()
                   << static_cast<int>(options.causal) << " " << options.window_left << " "
                   << options.window_right << " " << seqlen_q << " x " << seqlen_kv);
      check({.seqlen_q = seqlen_q, .seqlen_kv = seqlen_kv, .head_dim = 16, .options = options});
    }
}

// Both kinds of exchange: registers, and shared memory between warps.
TEST(EmulatorSm80Backward, GroupsOfHeads) {
  for (const std::int64_t head_dim : {32, 128})
    check({.batch = 2,
           .heads_q = 6,
           .heads_kv = 2,
           .seqlen_q = 33,
           .seqlen_kv = 40,
           .head_dim = head_dim,
           .options = {.causal = Causal::bottom_right}});
}

TEST(EmulatorSm80Backward, ScalesOfEverySign) {
  for (const float scale : {0.5f, -0.3f, 0.0f})
    check({.seqlen_q = 20, .seqlen_kv = 30, .head_dim = 32, .scale = scale});
}

TEST(EmulatorSm80Backward, NarrowLoads) {
  for (const std::int64_t gap : {4, 2, 1}) {
    SCOPED_TRACE(gap);
    check({.heads_q = 2,
           .heads_kv = 1,
           .seqlen_q = 35,
           .seqlen_kv = 37,
           .head_dim = 40,
           .row_gap = gap,
           .offset = gap});
  }
}

// Sequences of length 0 on either side, and tokens of no sequence, which hold NaN.
TEST(EmulatorSm80Backward, VarlenBatch) {
  for (const Causal causal : {Causal::none, Causal::bottom_right})
    check({.heads_q = 2,
           .heads_kv = 1,
           .seqlen_q = 130,
           .seqlen_kv = 170,
           .head_dim = 64,
           .options = {.causal = causal},
           .cu_q = {3, 3, 50, 51, 51, 121},
           .cu_kv = {2, 12, 45, 45, 60, 165},
           .max_q = 70,
           .max_kv = 105});
}

// A grid that the lengths on the device do not fill; head_dim 128 exchanges p and ds.
TEST(EmulatorSm80Backward, VarlenBatchWithLargeMaximum) {
  check({.seqlen_q = 40,
         .seqlen_kv = 50,
         .head_dim = 128,
         .cu_q = {0, 17, 40},
         .cu_kv = {0, 30, 50},
         .max_q = 200,
         .max_kv = 300});
}

// cu_seqlens that decrease or leave the tensors reach no memory outside and no token twice.
TEST(EmulatorSm80Backward, HostileSeqlens) {
  check({.seqlen_q = 60,
         .seqlen_kv = 60,
         .head_dim = 16,
         .cu_q = {0, 20, 5, 2147483647},
         .cu_kv = {-2147483647, 30, 90, 7},
         .max_q = 60,
         .max_kv = 60});
}

TEST(EmulatorSm80Backward, EmptySides) {
  check({.seqlen_q = 5, .seqlen_kv = 0, .head_dim = 16});
  check({.seqlen_q = 0, .seqlen_kv = 5, .head_dim = 16});
  check({.batch = 0, .seqlen_q = 5, .seqlen_kv = 5, .head_dim = 16});
}

// A row without keys gets dQ = 0, and what it holds does not matter where no row of its block sees
// a key.
TEST(EmulatorSm80Backward, NanInRowsWithoutKeys) {
  BackwardShape shape{.seqlen_q = 100,
                      .seqlen_kv = 40,
                      .head_dim = 16,
                      .options = {.causal = Causal::bottom_right}};
  BackwardCase c(shape);
  const BackwardCase::Gradients expected = c.reference();
  for (std::int64_t d = 0; d < shape.head_dim; ++d) {
    c.dout.bits(0, 0, 3, d) = HostTensor::kNan;
    c.out.bits(0, 0, 5, d) = HostTensor::kNan;
    c.q.bits(0, 0, 7, d) = HostTensor::kNan;
  }
  run(c, chosen_for(c, l4()), l4());
  expect_near(c.dk, expected.dk, c, 1, shape.seqlen_kv, "dk");
  expect_near(c.dv, expected.dv, c, 1, shape.seqlen_kv, "dv");
  expect_near(c.dq, expected.dq, c, 1, shape.seqlen_q, "dq");
}

TEST(EmulatorSm80Backward, SameBitsUnderEverySchedule) {
  const int seeds = test_long() ? 20 : 3;
  for (const std::int64_t head_dim : {64, 128}) {
    const BackwardShape shape{.heads_q = 2,
                              .heads_kv = 1,
                              .seqlen_q = 70,
                              .seqlen_kv = 70,
                              .head_dim = head_dim,
                              .options = {.causal = Causal::top_left}};
    BackwardCase first(shape);
    run(first, chosen_for(first, l4()), l4());
    for (int seed = 0; seed < seeds; ++seed) {
      BackwardCase c(shape);
      run(c, chosen_for(c, l4()), l4(), static_cast<std::uint64_t>(seed));
      EXPECT_TRUE(c.dq.data() == first.dq.data()) << seed;
      EXPECT_TRUE(c.dk.data() == first.dk.data()) << seed;
      EXPECT_TRUE(c.dv.data() == first.dv.data()) << seed;
    }
  }
}

// Through the API: kernels that are not compiled in are replaced by wider tiles or narrower loads.
TEST(EmulatorSm80Backward, PlansOfTheEmulator) {
  for (const int arch : {0, 90})
    for (const DType dtype : {DType::f16, DType::bf16})
      for (const std::int64_t gap : {0, 4}) {
        SCOPED_TRACE(testing::Message() << arch << " " << name(dtype) << " gap " << gap);
        BackwardCase c({.heads_q = 2,
                        .heads_kv = 1,
                        .seqlen_q = 33,
                        .seqlen_kv = 40,
                        .head_dim = 104,
                        .options = {.causal = Causal::bottom_right},
                        .dtype = dtype,
                        .row_gap = gap});
        const Device device{Device::Kind::emulator, arch};
        const Status status = attention_backward(c.arguments(), c.shape.options, device);
        ASSERT_TRUE(status.ok()) << status.message();
        expect_gradients(c);
        const Result<Explanation> explained = explain_backward(c.problem(), device);
        ASSERT_TRUE(explained.ok()) << explained.status().message();
        EXPECT_EQ(explained->kernel, "sm80_backward");
        EXPECT_EQ(explained->workspace_bytes, 2U * 128 * 2 * sizeof(float));
      }
}

// Windows with one and two ends, several heads, and lengths on the device that must be clamped.
std::vector<BackwardShape> mutant_shapes(std::int64_t head_dim) {
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
      {.seqlen_q = 70,
       .seqlen_kv = 70,
       .head_dim = head_dim,
       .options = {.window_left = 20, .window_right = 9}},
      {.seqlen_q = 150, .seqlen_kv = 150, .head_dim = head_dim, .options = {.window_left = 20}},
      {.heads_q = 2, .seqlen_q = 140, .seqlen_kv = 90, .head_dim = head_dim},
      varlen,
      truncated,
  };
}

void expect_every_call_needed(std::int64_t head_dim) {
  const auto run_on_l4 = [](BackwardCase& c, const emulator::Settings& settings,
                            const EmulatorThen& then) {
    return launch(c, chosen_for(c, l4()), l4(), settings, then);
  };
  expect_every_call_needed(run_on_l4, mutant_shapes(head_dim));
}

TEST(EmulatorSm80Backward, EveryMutantIsDetected) { expect_every_call_needed(64); }
// These warps exchange p and ds.
TEST(EmulatorSm80Backward, EveryMutantOfWideHeadsIsDetected) {
  if (!test_long()) GTEST_SKIP() << "OCTAVO_TEST_LONG is not set";
  expect_every_call_needed(128);
}

}  // namespace
}  // namespace octavo
