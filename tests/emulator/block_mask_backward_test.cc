// SPDX-License-Identifier: Apache-2.0
// The sm80 backward kernels with a block mask in the emulator: gradients against fp64, hazards, and
// lists that must be clamped.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "cpu/backward_case.h"
#include "emulator/backward_checks.h"
#include "emulator/long.h"
#include "evidence/cases/block_mask_cases.h"
#include "evidence/cases/draw.h"
#include "evidence/cases/inputs.h"
#include "gpu/backward/sm80_backward.h"
#include "gpu/backward/sm90_backward.h"
#include "runtime/emulated/emulated_backward.h"
#include "runtime/emulated/emulated_gpu.h"

namespace octavo {
namespace {

struct MaskedShape {
  std::uint64_t seed = 1;  // of the lists
  std::int64_t block_size = 64;
  std::int64_t batch = 2, heads_q = 2, heads_kv = 1, seqlen_q = 130, seqlen_kv = 200, head_dim = 64;
  Options options{};
  DType dtype = DType::f16;
  std::int64_t row_gap = 0;
  bool bias = false, mask = false, alibi = false;
};

// A call and the arrays of its block mask.
struct MaskedCall {
  evidence::BlockMaskArrays arrays;
  std::unique_ptr<cpu::BackwardCall> call;

  explicit MaskedCall(const MaskedShape& shape, bool hostile = false) {
    cpu::BackwardCase c;
    c.batch = shape.batch, c.heads_q = shape.heads_q, c.heads_kv = shape.heads_kv;
    c.seqlen_q = shape.seqlen_q, c.seqlen_kv = shape.seqlen_kv, c.head_dim = shape.head_dim;
    c.dtype = shape.dtype, c.row_gap = shape.row_gap, c.options = shape.options;
    call = std::make_unique<cpu::BackwardCall>(c);
    if (shape.bias) call->add_bias(DType::f32, {1, c.heads_q, c.seqlen_q, c.seqlen_kv}, DType::f32);
    if (shape.mask) call->add_mask({1, 1, c.seqlen_q, c.seqlen_kv});
    if (shape.alibi) call->add_alibi();
    evidence::Case lists;
    lists.seed = shape.seed;
    lists.block_mask = shape.block_size;
    lists.batch = c.batch, lists.heads_q = c.heads_q, lists.heads_kv = c.heads_kv;
    lists.seqlen_q = c.seqlen_q, lists.seqlen_kv = c.seqlen_kv;
    call->arguments.block_mask = evidence::make_block_mask(lists, arrays);
    EXPECT_EQ(call->run_forward().message(), "");
    if (!hostile) return;
    // Lists of other lengths and with indices far outside.
    lists.seqlens = evidence::Seqlens::hostile;
    call->arguments.block_mask = evidence::make_block_mask(lists, arrays);
  }
};

Status launch_masked(const cpu::BackwardCall& call) {
  return attention_backward(call.arguments, call.options, {Device::Kind::emulator, 0});
}

void expect_gradients(const cpu::BackwardCall& call, double tolerance) {
  const cpu::BackwardCall::Expected e = call.expected();
  const auto all = [](const char*, std::size_t) { return false; };
  constexpr double kRounding = 1e-3;
  call.expect_near(call.values(call.dq), e.dq, tolerance, kRounding, "dq", all);
  call.expect_near(call.values(call.dk), e.dk, tolerance, kRounding, "dk", all);
  call.expect_near(call.values(call.dv), e.dv, tolerance, kRounding, "dv", all);
  if (call.arguments.dbias.data != nullptr) {
    call.expect_near(call.values(call.dbias), e.dbias, tolerance, kRounding, "dbias", all);
    EXPECT_EQ(call.dbias.touched_guards(), 0);
  }
  for (const cpu::OwnedTensor* t : {&call.dq, &call.dk, &call.dv})
    EXPECT_EQ(t->touched_guards(), 0);
}

void check_masked(const MaskedShape& shape) {
  SCOPED_TRACE(testing::Message() << "seed " << shape.seed << " blocks of " << shape.block_size);
  const MaskedCall made(shape);
  const ExaminedLaunches examined({}, [](const emulator::Machine& machine) {
    EXPECT_TRUE(machine.report().clean()) << machine.report().text();
  });
  ASSERT_EQ(launch_masked(*made.call).message(), "");
  expect_gradients(*made.call, shape.dtype == DType::f16 ? 3e-3 : 2e-2);
}

// Lists of all heads and of each, full and partial blocks with bits and without.
TEST(EmulatorBlockMaskBackward, ListsAndBits) {
  for (const std::int64_t size : {64, 128})
    for (std::uint64_t seed = 1; seed <= (test_long() ? 12 : 2); ++seed)
      check_masked({.seed = seed, .block_size = size});
}

TEST(EmulatorBlockMaskBackward, BesideOtherMasksAndModifiers) {
  check_masked(
      {.seed = 4, .options = {.causal = Causal::bottom_right, .softcap = 1.5f}, .bias = true});
  check_masked({.seed = 5,
                .block_size = 128,
                .seqlen_q = 200,
                .seqlen_kv = 130,
                .options = {.window_left = 70, .window_right = 20},
                .bias = true,
                .mask = true,
                .alibi = true});
}

// The widest tiles with the narrowest loads.
TEST(EmulatorBlockMaskBackward, WideHeads) {
  check_masked({.seed = 2,
                .batch = 1,
                .heads_q = 1,
                .seqlen_q = 70,
                .seqlen_kv = 130,
                .head_dim = 136,
                .row_gap = 1,
                .bias = true});
  check_masked({.seed = 3,
                .block_size = 128,
                .batch = 1,
                .heads_q = 1,
                .seqlen_q = 70,
                .seqlen_kv = 140,
                .head_dim = 136,
                .dtype = DType::bf16,
                .row_gap = 1});
}

// More blocks than a warp searches for at once: of queries for dK and dV, of keys for dQ.
TEST(EmulatorBlockMaskBackward, MoreBlocksThanLanes) {
  check_masked(
      {.seed = 6, .batch = 1, .heads_q = 1, .seqlen_q = 2200, .seqlen_kv = 64, .head_dim = 16});
  check_masked({.seed = 7,
                .batch = 1,
                .heads_q = 1,
                .seqlen_q = 64,
                .seqlen_kv = 2200,
                .head_dim = 16,
                .options = {.window_left = 300}});
}

TEST(EmulatorBlockMaskBackward, EmptyListsGiveZeros) {
  MaskedCall made({.bias = true});
  for (auto* counts : {&made.arrays.num_blocks, &made.arrays.full_num_blocks})
    std::fill(counts->begin(), counts->end(), 0);
  ASSERT_EQ(made.call->run_forward().message(), "");
  ASSERT_EQ(launch_masked(*made.call).message(), "");
  for (const cpu::OwnedTensor* t :
       {&made.call->dq, &made.call->dk, &made.call->dv, &made.call->dbias})
    for (const float x : made.call->values(*t)) ASSERT_EQ(x, 0);
}

std::vector<std::uint8_t> gradient_bytes(const cpu::BackwardCall& call) {
  std::vector<std::uint8_t> all = call.dq.bytes;
  for (const cpu::OwnedTensor* t : {&call.dk, &call.dv, &call.dbias})
    all.insert(all.end(), t->bytes.begin(), t->bytes.end());
  return all;
}

TEST(EmulatorBlockMaskBackward, SameBitsUnderEverySchedule) {
  const MaskedShape shape{.seed = 4, .batch = 1, .heads_q = 1, .bias = true};
  const MaskedCall first(shape);
  ASSERT_EQ(launch_masked(*first.call).message(), "");
  const int seeds = test_long() ? 20 : 2;
  for (int seed = 1; seed <= seeds; ++seed) {
    const MaskedCall made(shape);
    emulator::Settings settings;
    settings.seed = static_cast<std::uint64_t>(seed);
    const ExaminedLaunches examined(settings, [](const emulator::Machine&) {});
    ASSERT_EQ(launch_masked(*made.call).message(), "");
    EXPECT_TRUE(gradient_bytes(*first.call) == gradient_bytes(*made.call)) << seed;
  }
}

// On a GPU the contents of lists are not checked: counts, indices and entries of bits that leave
// their arrays read and write nothing outside.
TEST(EmulatorBlockMaskBackward, HostileListsStayInside) {
  for (const std::int64_t size : {64, 128}) {
    const MaskedShape shape{.seed = 12, .block_size = size, .batch = 1, .bias = true};
    const MaskedCall made(shape, /*hostile=*/true);
    EXPECT_NE(launch_masked(*made.call).message(), "");  // the host can read them and refuses
    const Problem problem = problem_of(made.call->arguments, made.call->options).value();
    const GpuInfo& chip = emulated_gpu({Device::Kind::emulator, 0}).value()->info;
    ChosenSm80Backward chosen = choose_sm80_backward(problem, chip, 16);
    for (Sm80BackwardConfig* c : {&chosen.dkv, &chosen.dq, &*chosen.dbias}) {
      c->modifiers.softcap = c->modifiers.alibi = c->modifiers.mask = true;
    }
    std::vector<float> workspace(row_stats_bytes(problem) / sizeof(float) + 4);
    void* aligned = workspace.data();
    std::size_t room = workspace.size() * sizeof(float);
    ASSERT_NE(std::align(16, row_stats_bytes(problem), aligned, room), nullptr);
    const ExaminedLaunches examined({}, [](const emulator::Machine& machine) {
      EXPECT_TRUE(machine.report().clean()) << machine.report().text();
    });
    ASSERT_EQ(run_emulated_backward(chosen, chip, problem, made.call->arguments, aligned).message(),
              "");
    for (const cpu::OwnedTensor* t :
         {&made.call->dq, &made.call->dk, &made.call->dv, &made.call->dbias})
      EXPECT_EQ(t->touched_guards(), 0);
  }
}

TEST(EmulatorBlockMaskBackward, RandomProblemsHaveNoHazards) {
  const auto first = static_cast<std::uint64_t>(first_seed());
  const auto count = static_cast<std::uint64_t>(random_problems(2));
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    evidence::Draw draw(seed);
    MaskedShape shape;
    shape.seed = seed;
    shape.block_size = draw.one_in(2) ? 64 : 128;
    shape.batch = draw.between(1, 2);
    shape.heads_kv = draw.between(1, 2);
    shape.heads_q = shape.heads_kv * draw.between(1, 2);
    shape.seqlen_q = draw.between(1, 200);
    shape.seqlen_kv = draw.between(1, 260);
    shape.head_dim = 8 * draw.between(1, 8);
    shape.options.causal =
        draw.of(std::array{Causal::none, Causal::top_left, Causal::bottom_right});
    if (draw.one_in(3)) shape.options.window_left = draw.between(0, 100);
    if (draw.one_in(3)) shape.options.softcap = 1.3f;
    shape.bias = draw.one_in(2);
    shape.mask = draw.one_in(3);
    shape.alibi = draw.one_in(3);
    check_masked(shape);
  }
}

TEST(EmulatorBlockMaskBackward, HopperLeavesBlockMasksToTheSm80Family) {
  const MaskedCall made({});
  const Problem problem = problem_of(made.call->arguments, made.call->options).value();
  const GpuInfo& chip = emulated_gpu({Device::Kind::emulator, 90}).value()->info;
  EXPECT_FALSE(sm90_backward_serves(problem, chip));
  const Result<Explanation> explained = explain_backward(problem, {Device::Kind::emulator, 90});
  ASSERT_TRUE(explained.ok()) << explained.status().message();
  EXPECT_EQ(explained->kernel, "sm80_backward");
  EXPECT_NE(explained->config.find("block_mask=64"), std::string::npos) << explained->config;
}

// The terms that only kernels with a block mask have; `make test-long` takes all barriers and terms
// of a launch.
TEST(EmulatorBlockMaskBackward, EveryMutantIsDetected) {
  const std::array<MaskedShape, 2> shapes = {
      MaskedShape{
          .seed = 4, .batch = 1, .heads_q = 1, .seqlen_q = 140, .head_dim = 16, .bias = true},
      MaskedShape{.seed = 8,
                  .batch = 2,
                  .heads_q = 1,
                  .seqlen_q = 70,
                  .seqlen_kv = 130,
                  .head_dim = 16,
                  .bias = true}};
  const auto run = [](const MaskedCall& made, const emulator::Settings& settings,
                      const EmulatorThen& then) {
    const ExaminedLaunches examined(settings, then);
    EXPECT_EQ(launch_masked(*made.call).message(), "");
  };
  Calls calls;
  std::vector<std::vector<std::uint8_t>> expected;
  for (const MaskedShape& shape : shapes) {
    const MaskedCall made(shape);
    run(made, {}, [&calls](const emulator::Machine& machine) { merge(calls, machine.calls()); });
    expected.push_back(gradient_bytes(*made.call));
  }
  const auto is_in = [](const std::string& place, std::initializer_list<const char*> files) {
    return std::any_of(files.begin(), files.end(), [&place](const char* file) {
      return place.find(file) != std::string::npos;
    });
  };
  int tried = 0;
  for (const auto& use : calls) {
    const std::string place = describe(use.place);
    // Other tests have the mutants of code that other kernels share.
    if (is_in(place, {"device/core/", "backward_modifiers"})) continue;
    if (!test_long() && !is_in(place, {"backward_cursor", "bias_gradient"})) continue;
    ++tried;
    bool detected = use.useful == 0 || use.spare != nullptr;
    for (std::uint64_t schedule = 0; schedule < 3 && !detected; ++schedule)
      for (std::size_t i = 0; i < shapes.size() && !detected; ++i) {
        emulator::Settings settings;
        settings.mutant = use.place;
        if (schedule > 0) settings.seed = schedule;
        const MaskedCall made(shapes[i]);
        run(made, settings, [&detected](const emulator::Machine& machine) {
          detected = detected || !machine.report().clean();
        });
        detected = detected || gradient_bytes(*made.call) != expected[i];
      }
    EXPECT_TRUE(detected) << place << " survives";
  }
  EXPECT_GE(tried, 3);
}

}  // namespace
}  // namespace octavo
