// SPDX-License-Identifier: Apache-2.0
// The backward kernels with padding and score modifiers in the emulator: gradients against fp64,
// hazards, and what hidden memory may not change.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "cpu/backward_case.h"
#include "emulator/backward_checks.h"
#include "emulator/long.h"
#include "evidence/cases/draw.h"
#include "gpu/backward/sm80_backward.h"
#include "gpu/backward/sm90_backward.h"
#include "runtime/emulated/emulated_backward.h"
#include "runtime/emulated/emulated_gpu.h"

namespace octavo {
namespace {

enum Modifier : int {
  kWithSoftcap = 1,
  kWithBias = 2,
  kWithAlibi = 4,
  kWithSinks = 8,
  kWithMask = 16,
  kWithPadding = 32,
  kWithAll = 63,
  kOnHopper = kWithSoftcap | kWithAlibi | kWithSinks | kWithPadding,
};

struct ModifiedShape {
  int modifiers = kWithAll;
  std::int64_t seqlen_q = 70, seqlen_kv = 150, head_dim = 64;
  Options options{};
  DType dtype = DType::f16;
  std::int64_t row_gap = 0;
  std::array<std::int64_t, 4> bias{2, 4, 70, 150};
  DType bias_dtype = DType::f32;
};

// Two sequences of four query heads and two KV heads. Padding holds NaN.
std::unique_ptr<cpu::BackwardCall> make_call(const ModifiedShape& shape) {
  cpu::BackwardCase c;
  c.batch = 2, c.heads_q = 4, c.heads_kv = 2;
  c.seqlen_q = shape.seqlen_q, c.seqlen_kv = shape.seqlen_kv, c.head_dim = shape.head_dim;
  c.dtype = shape.dtype, c.row_gap = shape.row_gap, c.options = shape.options;
  if (shape.modifiers & kWithSoftcap) c.options.softcap = 1.3f;
  auto call = std::make_unique<cpu::BackwardCall>(c);
  if (shape.modifiers & kWithBias) call->add_bias(shape.bias_dtype, shape.bias, shape.bias_dtype);
  if (shape.modifiers & kWithAlibi) call->add_alibi();
  if (shape.modifiers & kWithSinks) call->add_sinks();
  if (shape.modifiers & kWithMask) call->add_mask({1, 4, c.seqlen_q, c.seqlen_kv});
  if (shape.modifiers & kWithPadding) {
    const auto q = static_cast<std::int32_t>(c.seqlen_q);
    const auto kv = static_cast<std::int32_t>(c.seqlen_kv);
    call->make_padded({q - 20, 30}, {kv - 3, kv / 3}, {3, 0}, {0, 11});
    for (const std::int64_t b : {0, 1})
      for (cpu::OwnedTensor* t : {&call->q, &call->dout, &call->k, &call->v})
        for (std::int64_t row = 0; row < t->view.shape[2]; ++row) {
          const Sequence at = sequence(forward_arguments(call->arguments), b);
          const bool of_q = t == &call->q || t == &call->dout;
          const std::int64_t begin = of_q ? at.q_begin : at.kv_begin;
          const std::int64_t length = of_q ? at.seqlen_q : at.seqlen_kv;
          if (row >= begin && row < begin + length) continue;
          static_cast<std::uint16_t*>(t->view.data)[t->at(b, 1, row, 2)] = 0x7fff;  // NaN
        }
  }
  EXPECT_EQ(call->run_forward().message(), "");
  return call;
}

using ModifiedLaunch = std::function<Status(const cpu::BackwardCall&)>;

Status launch_sm80(const cpu::BackwardCall& call) {
  return attention_backward(call.arguments, call.options, {Device::Kind::emulator, 0});
}

// The emulator has Hopper kernels that can apply everything; neutral parameters switch parts off.
Status launch_sm90(const cpu::BackwardCall& call) {
  const Problem problem = problem_of(call.arguments, call.options).value();
  const GpuInfo& chip = emulated_gpu({Device::Kind::emulator, 90}).value()->info;
  EXPECT_TRUE(sm90_backward_serves(problem, chip));
  ChosenSm90Backward chosen = choose_sm90_backward(problem, 1);  // not the tiles of few keys
  EXPECT_EQ(chosen.config.modifiers.padded, problem.padded);
  if (any(chosen.config.modifiers))
    chosen.config.modifiers = {.softcap = true, .alibi = true, .padded = true};
  constexpr std::size_t kAlignment = 256;
  const std::size_t bytes =
      sm90_backward_workspace(problem, call.arguments.q.shape[2], chosen).total;
  std::vector<float> workspace((bytes + kAlignment) / sizeof(float),
                               std::numeric_limits<float>::quiet_NaN());
  void* aligned = workspace.data();
  std::size_t room = workspace.size() * sizeof(float);
  EXPECT_NE(std::align(kAlignment, bytes, aligned, room), nullptr);
  return run_emulated_sm90_backward(chosen, chip, problem, call.arguments, aligned);
}

// Beside the largest element of a gradient, in units of it: all are 0 if each row sees one key, and
// the kernels' are the rounding of dP - delta.
constexpr double kRounding = 1e-3;

void check_modified(const ModifiedShape& shape, const ModifiedLaunch& launch) {
  const auto call = make_call(shape);
  const ExaminedLaunches examined({}, [](const emulator::Machine& machine) {
    EXPECT_TRUE(machine.report().clean()) << machine.report().text();
  });
  ASSERT_EQ(launch(*call).message(), "");
  const cpu::BackwardCall::Expected e = call->expected();
  const double tolerance = shape.dtype == DType::f16 ? 3e-3 : 2e-2;
  const auto all = [](const char*, std::size_t) { return false; };
  call->expect_near(call->values(call->dq), e.dq, tolerance, kRounding, "dq", all);
  call->expect_near(call->values(call->dk), e.dk, tolerance, kRounding, "dk", all);
  call->expect_near(call->values(call->dv), e.dv, tolerance, kRounding, "dv", all);
  call->expect_near(call->dsinks, e.dsinks, tolerance, kRounding, "dsinks", all);
  if (shape.modifiers & kWithBias) {
    call->expect_near(call->values(call->dbias), e.dbias, tolerance, kRounding, "dbias", all);
    EXPECT_EQ(call->dbias.touched_guards(), 0);
  }
  for (const cpu::OwnedTensor* t : {&call->dq, &call->dk, &call->dv})
    EXPECT_EQ(t->touched_guards(), 0);
}

TEST(EmulatorModifiedBackward, EveryModifierAloneAndAllTogether) {
  std::vector<int> sets = {kWithSoftcap | kWithSinks, kWithBias | kWithPadding,
                           kWithAlibi | kWithMask, kWithAll};
  if (test_long())
    sets = {kWithSoftcap, kWithBias, kWithAlibi, kWithSinks, kWithMask, kWithPadding, kWithAll};
  for (const int modifiers : sets) {
    SCOPED_TRACE(testing::Message() << "modifiers " << modifiers);
    check_modified({.modifiers = modifiers, .options = {.causal = Causal::bottom_right}},
                   launch_sm80);
  }
}

// Windows and lengths; the widest tiles with the narrowest loads.
TEST(EmulatorModifiedBackward, MasksAndLengths) {
  check_modified({.options = {.window_left = 20, .window_right = 9}}, launch_sm80);
  check_modified({.seqlen_q = 150,
                  .seqlen_kv = 70,
                  .options = {.causal = Causal::top_left},
                  .bias = {2, 4, 150, 70}},
                 launch_sm80);
  for (const DType dtype : {DType::f16, DType::bf16})
    check_modified({.seqlen_q = 40,
                    .seqlen_kv = 50,
                    .head_dim = 136,
                    .dtype = dtype,
                    .row_gap = 1,
                    .bias = {2, 4, 40, 50}},
                   launch_sm80);
}

// An entry of a bias that holds for all heads or all sequences, which have different padding.
TEST(EmulatorModifiedBackward, BiasGradientsSumOverHeadsAndSequences) {
  for (const std::array<std::int64_t, 4>& bias :
       {std::array<std::int64_t, 4>{1, 1, 70, 150}, {2, 1, 70, 150}, {1, 4, 70, 150}})
    for (const DType dtype : {DType::f16, DType::bf16}) {
      if (!test_long() && (bias[0] == 1) != (dtype == DType::f16)) continue;
      SCOPED_TRACE(testing::Message() << bias[0] << " x " << bias[1] << " " << name(dtype));
      check_modified({.modifiers = kWithBias | kWithPadding, .bias = bias, .bias_dtype = dtype},
                     launch_sm80);
    }
}

void check_on_hopper(int modifiers, Causal causal, std::int64_t head_dim, DType dtype) {
  SCOPED_TRACE(testing::Message() << "D " << head_dim << " modifiers " << modifiers << " "
                                  << name(causal));
  check_modified({.modifiers = modifiers,
                  .seqlen_kv = 200,
                  .head_dim = head_dim,
                  .options = {.causal = causal},
                  .dtype = dtype},
                 launch_sm90);
}

TEST(EmulatorModifiedBackward, AllModifiersOnHopper) {
  check_on_hopper(kOnHopper, Causal::none, 64, DType::f16);
  check_on_hopper(kOnHopper, Causal::bottom_right, 64, DType::f16);
  check_on_hopper(kOnHopper, Causal::bottom_right, 128, DType::bf16);
  check_on_hopper(kOnHopper, Causal::bottom_right, 200, DType::f16);
}

TEST(EmulatorModifiedBackward, EveryModifierAloneOnHopper) {
  if (!test_long()) GTEST_SKIP() << "OCTAVO_TEST_LONG is not set";
  for (const auto& [head_dim, dtype] :
       {std::pair{64, DType::f16}, {128, DType::bf16}, {256, DType::f16}})
    for (const int modifiers :
         {int{kWithSoftcap}, int{kWithAlibi}, int{kWithSinks}, int{kWithPadding}})
      for (const Causal causal : {Causal::none, Causal::bottom_right})
        check_on_hopper(modifiers, causal, head_dim, dtype);
}

// The forward pass stores an LSE of such a size where a bias hides all keys of a row by a huge
// number: P does not follow from it, and the row has no gradients.
TEST(EmulatorModifiedBackward, RowsWithAHugeLseGiveNoGradients) {
  for (const float level : {-1e9f, std::numeric_limits<float>::lowest()}) {
    ModifiedShape shape{.modifiers = kWithBias, .seqlen_q = 70, .seqlen_kv = 90};
    shape.bias = {2, 4, 70, 90};
    const auto call = make_call(shape);
    call->set_bias_row(8, level);
    ASSERT_EQ(call->run_forward().message(), "");
    ASSERT_EQ(launch_sm80(*call).message(), "");
    call->clear_dout_row(8);
    const cpu::BackwardCall::Expected e = call->expected();
    const auto all = [](const char*, std::size_t) { return false; };
    call->expect_near(call->values(call->dq), e.dq, 3e-3, kRounding, "dq", all);
    call->expect_near(call->values(call->dk), e.dk, 3e-3, kRounding, "dk", all);
    call->expect_near(call->values(call->dv), e.dv, 3e-3, kRounding, "dv", all);
    call->expect_near(call->values(call->dbias), e.dbias, 3e-3, kRounding, "dbias", all);
  }
}

// A call with any of the modifiers, masks, sizes and strides.
ModifiedShape random_shape(evidence::Draw& draw, bool on_hopper) {
  constexpr std::array<std::int64_t, 7> kDims = {8, 16, 40, 64, 80, 96, 128};
  constexpr std::array kCausal = {Causal::none, Causal::top_left, Causal::bottom_right};
  ModifiedShape shape;
  shape.modifiers = static_cast<int>(draw.between(0, kWithAll));
  if (draw.one_in(3)) shape.modifiers = 0;
  if (on_hopper) shape.modifiers &= kOnHopper;
  // Padding hides some rows of at least this many.
  shape.seqlen_q = draw.between(31, 90);
  shape.seqlen_kv = draw.between(20, 150);
  shape.head_dim = draw.of(kDims);
  shape.dtype = draw.one_in(2) ? DType::f16 : DType::bf16;
  // The emulator has few Hopper kernels with modifiers, and those of 80 and 96 columns in f16 only.
  if (on_hopper && shape.modifiers != 0 && shape.head_dim > 64) shape.head_dim = 128;
  if (on_hopper && (shape.modifiers != 0 || shape.head_dim > 64))
    shape.dtype = shape.modifiers != 0 && shape.head_dim == 128 ? DType::bf16 : DType::f16;
  shape.options.causal = draw.of(kCausal);
  if (draw.one_in(3)) shape.options.window_left = draw.between(0, 60);
  if (shape.options.causal == Causal::none && draw.one_in(3))
    shape.options.window_right = draw.between(0, 60);
  if (!on_hopper && draw.one_in(3)) shape.row_gap = draw.one_in(2) ? 8 : 1;
  shape.bias = {draw.between(1, 2), draw.one_in(2) ? 4 : 1, shape.seqlen_q, shape.seqlen_kv};
  shape.bias_dtype = draw.one_in(2) ? DType::f32 : shape.dtype;
  return shape;
}

TEST(EmulatorModifiedBackward, RandomProblemsHaveNoHazards) {
  const auto first = static_cast<std::uint64_t>(first_seed());
  const auto count = static_cast<std::uint64_t>(random_problems(6));
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    evidence::Draw draw(seed);
    const bool on_hopper = draw.one_in(2);
    check_modified(random_shape(draw, on_hopper), on_hopper ? launch_sm90 : launch_sm80);
  }
}

TEST(EmulatorModifiedBackward, HopperLeavesBiasAndMasksToTheSm80Family) {
  const GpuInfo& chip = emulated_gpu({Device::Kind::emulator, 90}).value()->info;
  for (const int modifiers : {int{kWithBias}, int{kWithMask}}) {
    const auto call = make_call({.modifiers = modifiers});
    EXPECT_FALSE(sm90_backward_serves(problem_of(call->arguments, call->options).value(), chip));
  }
}

TEST(EmulatorModifiedBackward, BroadcastRowsOfABiasAreRefused) {
  const auto call = make_call({.modifiers = kWithBias, .bias = {1, 1, 1, 150}});
  EXPECT_EQ(launch_sm80(*call).message(),
            "dbias.shape[2] is 1; supported here: 70 in the backward pass on a GPU.");
  for (const float x : call->values(call->dq)) ASSERT_TRUE(std::isnan(x));
}

std::vector<std::uint8_t> all_gradients(const cpu::BackwardCall& call) {
  std::vector<std::uint8_t> all = call.dq.bytes;
  for (const cpu::OwnedTensor* t : {&call.dk, &call.dv, &call.dbias})
    all.insert(all.end(), t->bytes.begin(), t->bytes.end());
  const auto* const sinks = reinterpret_cast<const std::uint8_t*>(call.dsinks.data());
  all.insert(all.end(), sinks, sinks + call.dsinks.size() * sizeof(float));
  return all;
}

// Every barrier and mask term is needed by one of these cases, or marked as not needed. What all
// kernels share (device/core) is the matter of other tests.
void expect_every_modified_call_needed(const std::vector<ModifiedShape>& shapes,
                                       const ModifiedLaunch& launch) {
  std::vector<std::vector<std::uint8_t>> expected;
  Calls calls;
  const auto run = [&launch](cpu::BackwardCall& call, const emulator::Settings& settings,
                             const EmulatorThen& then) {
    const ExaminedLaunches examined(settings, then);
    EXPECT_EQ(launch(call).message(), "");
  };
  for (const ModifiedShape& shape : shapes) {
    const auto call = make_call(shape);
    run(*call, {}, [&calls](const emulator::Machine& machine) { merge(calls, machine.calls()); });
    expected.push_back(all_gradients(*call));
  }
  for (const auto& use : calls) {
    bool detected = use.useful == 0 || use.spare != nullptr ||
                    describe(use.place).find("device/core/") != std::string::npos;
    for (std::uint64_t schedule = 0; schedule < 3 && !detected; ++schedule)
      for (std::size_t i = 0; i < shapes.size() && !detected; ++i) {
        emulator::Settings settings;
        settings.mutant = use.place;
        if (schedule > 0) settings.seed = schedule;
        const auto call = make_call(shapes[i]);
        run(*call, settings, [&detected](const emulator::Machine& machine) {
          detected = detected || !machine.report().clean();
        });
        detected = detected || all_gradients(*call) != expected[i];
      }
    EXPECT_TRUE(detected) << describe(use.place) << " survives";
  }
}

TEST(EmulatorModifiedBackward, EveryMutantIsDetected) {
  if (!test_long()) GTEST_SKIP() << "OCTAVO_TEST_LONG is not set";
  expect_every_modified_call_needed(
      {{.options = {.window_left = 20, .window_right = 9}},
       {.modifiers = kWithBias | kWithPadding, .bias = {1, 1, 70, 150}}},
      launch_sm80);
}

TEST(EmulatorModifiedBackward, EveryMutantOnHopperIsDetected) {
  if (!test_long()) GTEST_SKIP() << "OCTAVO_TEST_LONG is not set";
  expect_every_modified_call_needed({{.modifiers = kOnHopper,
                                      .seqlen_q = 300,
                                      .seqlen_kv = 200,
                                      .options = {.causal = Causal::bottom_right}},
                                     {.modifiers = kOnHopper, .seqlen_kv = 200}},
                                    launch_sm90);
}

}  // namespace
}  // namespace octavo
