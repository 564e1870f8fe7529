// SPDX-License-Identifier: Apache-2.0
// Each Hopper kernel in the emulator, on edge cases of the problems it serves, on a chip with so
// few SMs that a CTA computes many tiles.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "emulator/long.h"
#include "emulator/sm90_runner.h"
#include "evidence/cases/emulated_cases.h"
#include "evidence/gates/check.h"
#include "gpu/forward/sm90_forward.h"
#include "gpu/jit/config_text.h"
#include "gpu/jit/shipped.h"
#include "numeric/formats.h"
#include "numeric/random.h"
#include "octavo/emulator.hpp"
#include "octavo/octavo.h"
#include "runtime/emulated/emulated_launch.h"

namespace octavo::evidence {
namespace {

constexpr Device kSm90{Device::Kind::emulator, 90};

// A problem with the kernel's head dimension, or less by a number of 16-bit columns.
struct Edge {
  std::int64_t seqlen_q, seqlen_kv;
  Causal causal = Causal::none;
  std::int64_t window_left = -1, window_right = -1;
  std::int64_t batch = 1, heads_q = 1, heads_kv = 1;
  Layout layout = Layout::bhsd;
  std::int64_t columns_less = 0;
  std::optional<float> scale{};
};
constexpr auto kNone = Causal::none, kTop = Causal::top_left, kBottom = Causal::bottom_right;
constexpr auto kBhsd = Layout::bhsd, kBshd = Layout::bshd, kPacked = Layout::varlen;
const Edge kEdges[] = {
    {1, 1},
    {64, 128},
    {65, 129, kTop},
    {7, 300},
    {200, 40},
    {5, 0},
    {130, 130, kTop},
    {130, 130, kBottom},
    {70, 200, kBottom},
    {200, 70, kBottom},  // rows that see no key
    {200, 70, kTop},
    {100, 260, kBottom, 33},
    {260, 100, kTop, 0},
    {150, 150, kNone, 20, 15},
    {90, 210, kNone, -1, 40},
    {90, 210, kNone, 64, -1},
    {210, 90, kNone, 0, 0},
    {40, 90, kNone, -1, -1, 2, 4, 2},
    {66, 66, kTop, -1, -1, 1, 6, 1},
    {30, 140, kBottom, -1, -1, 3, 2, 1, kBshd},
    {100, 100, kTop, -1, -1, 2, 2, 2, kBshd, 8},
    {70, 140, kNone, -1, -1, 3, 1, 1, kPacked},
    {140, 70, kTop, -1, -1, 3, 2, 1, kPacked},
    {90, 190, kBottom, 50, -1, 2, 2, 2, kPacked, 8},
    {20, 10, kBottom, -1, -1, 4, 1, 1, kPacked, 24},
    {64, 64, kNone, -1, -1, 2, 1, 1, kPacked},
    {33, 77, kNone, -1, -1, 1, 1, 1, kBhsd, 8},
    {80, 90, kTop, -1, -1, 1, 2, 2, kBhsd, 16},
    {60, 100, kNone, -1, -1, 1, 1, 1, kBhsd, 24, -0.3f},
    {100, 60, kBottom, -1, -1, 1, 2, 1, kBhsd, 0, -1.0f},
    {60, 100, kNone, -1, -1, 1, 1, 1, kBhsd, 0, 0.0f},
    {50, 400, kNone, -1, -1, 1, 1, 1, kBhsd, 0, 4.0f},  // maxima grow along the keys
};

Case case_of(const Edge& edge, const Sm90ForwardConfig& config, std::uint64_t seed) {
  Case c;
  c.batch = edge.batch;
  c.heads_q = edge.heads_q;
  c.heads_kv = edge.heads_kv;
  c.seqlen_q = edge.seqlen_q;
  c.seqlen_kv = edge.seqlen_kv;
  c.head_dim = config.head_dim - edge.columns_less * 2 / element_bytes(config.element);
  if (config.head_dim_v > 0) c.head_dim_v = config.head_dim_v - edge.columns_less;
  c.input = static_cast<DType>(config.element);
  evidence::set_8bit_inputs(config, c);
  if (config.k_scales == KScales::row && edge.seqlen_q % 3 == 0) {
    c.qk_scales = Granularity::block;
    if (c.options.quantization.qk) c.options.quantization.qk = Granularity::block;
    c.options.quantization.block_rows = 50;
  }
  c.out = static_cast<DType>(config.output.element);
  c.amax = config.output.amax;
  c.options.causal = edge.causal;
  c.options.window_left = edge.window_left;
  c.options.window_right = edge.window_right;
  c.layout = edge.layout;
  c.scale = edge.scale;
  c.lse = !config.sum_rounded_p;
  c.seed = seed;
  return c;
}

// Every kernel runs one of the edge cases, and every edge case runs on some kernels; `make
// test-long`: eight, and bf16 too. Kernels with a block mask need its lists: block_mask_test.cc.
TEST(EmulatorSm90, EveryKernelAtTheEdges) {
  constexpr std::size_t kEdgeCount = std::size(kEdges);
  const auto& kernels = emulator::sm90_forward_kernels();
  const std::size_t edges_each = test_long() ? 8 : 1;
  std::vector<int> met(kEdgeCount);
  std::size_t number = 0;  // of the kernels that run
  for (std::size_t k = 0; k < kernels.size(); ++k) {
    const emulator::EmulatedSm90Forward& kernel = kernels[k];
    if (kernel.config.element == Element::bf16 && !test_long()) continue;
    if (kernel.config.modifiers.block_mask != 0) continue;
    ++number;
    std::size_t taken = 0;
    for (std::size_t i = 0; i < kEdgeCount && taken < edges_each; ++i) {
      const std::size_t at = (number * edges_each + i) % kEdgeCount;
      if (kEdges[at].layout == Layout::varlen && sm90::is_split_kv(kernel.config)) continue;
      ++taken;
      ++met[at];
      const std::optional<std::uint64_t> seed =
          (k + taken) % 2 == 0 ? std::optional<std::uint64_t>(k) : std::nullopt;
      CheckOptions options;
      options.device = kSm90;
      options.repeat = 1;
      const Result<CheckReport> report =
          check_cases(options, {case_of(kEdges[at], kernel.config, k)}, runner_of(kernel, seed));
      ASSERT_TRUE(report.ok()) << report.status().message();
      for (const std::string& failure : report->failures)
        ADD_FAILURE() << brief_text(kernel.config) << ": " << failure;
    }
  }
  EXPECT_EQ(std::count(met.begin(), met.end(), 0), 0);
}

// Heads that share tiles (pack_gqa): fewer queries than a tile has rows, more, exactly as many, and
// so many that a head has its own tiles.
const Edge kPackedEdges[] = {
    {1, 300, kNone, -1, -1, 2, 8, 2},
    {5, 70, kBottom, -1, -1, 1, 6, 2},
    {7, 129, kTop, -1, -1, 1, 4, 1},
    {16, 40, kNone, 20, 15, 1, 12, 3},
    {32, 100, kBottom, 33, -1, 2, 4, 2, kBshd},
    {33, 90, kNone, -1, -1, 1, 4, 2},
    {70, 140, kBottom, -1, -1, 1, 4, 2},
    {130, 60, kTop, -1, -1, 1, 3, 1},
    {3, 0, kNone, -1, -1, 1, 4, 1},
    {5, 66, kTop, -1, -1, 1, 40, 2},
    {16, 9, kBottom, -1, -1, 1, 8, 1},
    {2, 77, kNone, -1, -1, 2, 6, 3, kBhsd, 8, -0.3f},
    {9, 130, kNone, -1, 0, 3, 2, 2},
};

TEST(EmulatorSm90, PackGqaMatchesTheOracle) {
  std::size_t packed = 0;
  for (const auto& kernel : emulator::sm90_forward_kernels()) {
    if (!kernel.config.pack_gqa) continue;
    ++packed;
    std::vector<Case> cases;
    for (const Edge& edge : kPackedEdges)
      cases.push_back(case_of(edge, kernel.config, cases.size()));
    CheckOptions options;
    options.device = kSm90;
    options.repeat = 1;
    const Result<CheckReport> report = check_cases(options, cases, runner_of(kernel, {}));
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_EQ(report->cases, static_cast<std::int64_t>(std::size(kPackedEdges)));
    for (const std::string& failure : report->failures)
      ADD_FAILURE() << brief_text(kernel.config) << ": " << failure;
  }
  EXPECT_GE(packed, 6U);
}

// The launches that a run leaves, of quantizers too, are correct for the next one: the same shapes
// in other memory, other strides, other lengths, and the first again.
class EmulatorSm90Repeated : public testing::TestWithParam<Precision> {};
INSTANTIATE_TEST_SUITE_P(Precisions, EmulatorSm90Repeated,
                         testing::Values(Precision::native, Precision::fp8, Precision::int8,
                                         Precision::int8_mixed),
                         [](const auto& made) { return std::string(name(made.param)); });
TEST_P(EmulatorSm90Repeated, RunsMatchTheOracle) {
  Case c;
  c.options.precision = GetParam();
  c.batch = 2;
  c.heads_q = c.heads_kv = 2;
  c.seqlen_q = c.seqlen_kv = 70;
  c.head_dim = 64;
  c.input = c.out = DType::f16;
  std::vector<Case> cases(5, c);
  for (std::size_t i = 0; i < cases.size(); ++i) cases[i].seed = i;
  cases[2].layout = Layout::bshd;
  cases[3].seqlen_kv = 90;
  CheckOptions options;
  options.device = kSm90;
  options.repeat = 2;
  const Result<CheckReport> report = check_cases(options, cases, library_runner(kSm90));
  ASSERT_TRUE(report.ok()) << report.status().message();
  for (const std::string& failure : report->failures) ADD_FAILURE() << failure;
}

// Exponentials of one row of a block on the exp unit; the polynomial's groups of sixteen keys are
// spread evenly.
std::int64_t exponentials_of_row(const Sm90ForwardConfig& c) {
  const int sixteens = c.block_n / 16;
  return c.scores == ScoreType::f16_fast
             ? 0
             : 16 * (sixteens - sixteens * sm90::polynomial_groups(c) / 4);
}
// For the case without a mask: one tile of all rows and one of five, whole blocks of keys.
TEST(EmulatorSm90, TensorAndExponentialCountsFollowFromTheShape) {
  const auto& kernels = emulator::sm90_forward_kernels();
  for (std::size_t k = 0; k < kernels.size(); k += 12) {
    const Sm90ForwardConfig& c = kernels[k].config;
    // tanh needs an exponential of its own, and a block mask decides how many blocks there are.
    if (c.pack_gqa || c.modifiers.softcap || c.modifiers.block_mask != 0) continue;
    const Result<std::vector<MeasureReport>> reports =
        emulator_measure("sm90_forward " + brief_text(c));
    ASSERT_TRUE(reports.ok()) << reports.status().message();
    std::int64_t wgmma = 0, ex2 = 0;
    for (const MeasuredCount& count : reports->at(0).counts) {
      if (count.instruction == "wgmma") wgmma += count.times;
      if (count.instruction == "ex2") ex2 += count.times;
      if (count.instruction == "ex2.f16x2") ex2 += 2 * count.times;
    }
    // If warpgroups divide the rows, one has the five rows; otherwise all compute them.
    const std::int64_t tiles =
        sm90::column_tiles(c) * (sm90::is_split_kv(c) ? 2 * c.row_groups : c.warpgroups + 1);
    const std::int64_t blocks = tiles * (sm90::kv_splits(c) * (c.stages + 1) + 1);
    const int qk_steps = c.head_dim * element_bytes(c.element) / 32;
    const int pv_steps = c.block_n * element_bytes(c.v_element) / 32;
    const int parts = c.pv_columns == 0 ? 1 : c.head_dim / c.pv_columns;
    const int bias = sm90::has_biased_scores(c) ? 1 : 0;
    EXPECT_EQ(wgmma, 4 * blocks * (bias + qk_steps + parts * pv_steps))
        << brief_text(c);  // counted per warp
    const std::int64_t of_scores = exponentials_of_row(c);
    EXPECT_GE(ex2, blocks * sm90::kRows * of_scores) << brief_text(c);
    EXPECT_LE(ex2, blocks * sm90::kRows * (of_scores + 16)) << brief_text(c);
  }
}

// In BF16 one kernel of each form is.
TEST(EmulatorSm90, EveryShippedConfigurationIsListed) {
  const std::vector<EmulatedKernel> kernels = emulated_kernels();
  const auto is_listed = [&](const Sm90ForwardConfig& config) {
    return std::any_of(kernels.begin(), kernels.end(), [&](const EmulatedKernel& k) {
      return k.kernel == "sm90_forward" && k.config == to_text(config);
    });
  };
  std::ptrdiff_t bf16 = 0;
  for (const Sm90ForwardConfig& config : shipped_sm90_configs())
    if (config.element == Element::bf16)
      bf16 += is_listed(config);
    else
      EXPECT_TRUE(is_listed(config)) << to_text(config);
  EXPECT_GE(bf16, 6);
  for (const int arch : {89, 90})
    for (Sm80ForwardConfig config : shipped_configs(arch)) {
      config.arch = 89;
      EXPECT_TRUE(std::any_of(kernels.begin(), kernels.end(), [&](const EmulatedKernel& k) {
        return k.kernel == "sm80_forward" && k.config == to_text(config);
      })) << to_text(config);
    }
}

// On a Hopper chip, as on a GPU: TMA needs 16-byte alignment; sim8 and other chips use the sm80
// family.
TEST(EmulatorSm90, ServesAlignedProblemsOf16And8Bits) {
  Problem p;
  p.batch = 1;
  p.heads_q = p.heads_kv = 8;
  p.seqlen_q = p.seqlen_kv = 512;
  p.head_dim = p.head_dim_v = 64;
  const auto kernel_of = [&p](Device device) { return explain(p, device).value().kernel; };
  EXPECT_EQ(kernel_of(kSm90), "sm90_forward");
  EXPECT_EQ(kernel_of({Device::Kind::emulator, 0}), "sm80_forward");
  p.out = DType::f32;
  EXPECT_EQ(kernel_of(kSm90), "sm90_forward");
  p.out = DType::f16;
  p.head_dim = p.head_dim_v = 60;
  EXPECT_EQ(kernel_of(kSm90), "sm80_forward");
  p.head_dim = p.head_dim_v = 64;
  p.options.precision = Precision::fp8;
  EXPECT_EQ(kernel_of(kSm90), "sm90_forward");
  EXPECT_NE(explain(p, kSm90)->reason.find("V becomes e4m3 first"), std::string::npos);
  p.options.precision = Precision::fp8_fast;
  EXPECT_NE(explain(p, kSm90)->reason.find("P by integer arithmetic"), std::string::npos);
  p.lse = true;
  EXPECT_NE(explain(p, kSm90)->reason.find("fp8_fast gives what fp8 gives"), std::string::npos);
  p.lse = false;
  p.options.precision = Precision::int8;
  EXPECT_EQ(kernel_of(kSm90), "sm90_forward");
  p.options.precision = Precision::sim8;
  EXPECT_EQ(kernel_of(kSm90), "sm80_forward");
  p.options.precision = Precision::native;
  for (const DType input : {DType::e4m3, DType::e5m2, DType::int8}) {
    p.q = p.k = p.v = input;
    EXPECT_EQ(kernel_of(kSm90), "sm90_forward");
    EXPECT_NE(explain(p, kSm90)->reason.find("; V is transposed first"), std::string::npos);
    EXPECT_EQ(explain(p, kSm90)->workspace_bytes, 8U * 512 * 64);
  }
}

// Both families serve V with other columns in 16 bits; TMA needs rows of whole 16 bytes.
TEST(EmulatorSm90, ServesOtherColumnsOfV) {
  Problem p;
  p.batch = 1;
  p.heads_q = p.heads_kv = 8;
  p.seqlen_q = p.seqlen_kv = 4096;
  p.head_dim = 192;
  p.head_dim_v = 128;
  const Explanation hopper = explain(p, kSm90).value();
  EXPECT_EQ(hopper.kernel, "sm90_forward");
  EXPECT_NE(hopper.config.find("head_dim=192,.head_dim_v=128"), std::string::npos);
  const Explanation older = explain(p, {Device::Kind::emulator, 0}).value();
  EXPECT_EQ(older.kernel, "sm80_forward");
  EXPECT_NE(older.config.find("head_dim=192,.head_dim_v=128"), std::string::npos);
  p.head_dim = 64;
  p.head_dim_v = 60;
  EXPECT_EQ(explain(p, kSm90).value().kernel, "sm80_forward");
}

TEST(EmulatorSm90, PacksFewQueriesOfHeadsThatShareKeys) {
  Problem p;
  p.batch = 8;
  p.heads_q = 64;
  p.heads_kv = 8;
  p.seqlen_q = 4;
  p.seqlen_kv = 512;
  p.head_dim = p.head_dim_v = 64;
  const auto packs = [&p] {
    return explain(p, kSm90).value().config.find("pack_gqa=true") != std::string::npos;
  };
  EXPECT_TRUE(packs());
  p.seqlen_q = 64;
  EXPECT_FALSE(packs());
  p.seqlen_q = 4;
  p.heads_kv = 64;
  EXPECT_FALSE(packs());
}

// From C as from C++; a struct from before the option existed does not have it.
TEST(EmulatorSm90, LaunchesEarlyIfRequested) {
  octavo_arguments a;
  octavo_arguments_init(&a);
  const auto place = [](std::uintptr_t i) { return reinterpret_cast<void*>(i << 32); };
  a.q = octavo_tensor_bhsd(place(1), OCTAVO_F16, 1, 8, 512, 64);
  a.k = octavo_tensor_bhsd(place(2), OCTAVO_F16, 1, 8, 512, 64);
  a.v = octavo_tensor_bhsd(place(3), OCTAVO_F16, 1, 8, 512, 64);
  a.out = octavo_tensor_bhsd(place(4), OCTAVO_F16, 1, 8, 512, 64);
  octavo_options options;
  octavo_options_init(&options);
  const auto early = [&] {
    char text[2048];
    EXPECT_EQ(octavo_explain(&a, &options, "emulator:90", text, sizeof text, nullptr), OCTAVO_OK);
    return std::string_view(text).find("launched early") != std::string_view::npos;
  };
  EXPECT_FALSE(early());
  options.overlap_launch = 1;
  EXPECT_TRUE(early());
  options.size = offsetof(octavo_options, overlap_launch);
  EXPECT_FALSE(early());
}

TEST(EmulatorSm90, ForcedFamilyIsUsed) {
  Problem p;
  p.batch = p.heads_q = p.heads_kv = 1;
  p.seqlen_q = p.seqlen_kv = 64;
  p.head_dim = p.head_dim_v = 64;
  setenv("OCTAVO_KERNELS", "sm80", 1);
  EXPECT_EQ(explain(p, kSm90).value().kernel, "sm80_forward");
  setenv("OCTAVO_KERNELS", "sm90", 1);
  EXPECT_EQ(explain(p, kSm90).value().kernel, "sm90_forward");
  const Status refused = plan(p, {Device::Kind::emulator, 0}).status();
  unsetenv("OCTAVO_KERNELS");
  EXPECT_EQ(
      refused.message().find("OCTAVO_KERNELS is 'sm90'; supported here: sm80, or nothing, for "),
      0U)
      << refused.message();
}

// V has mean 2 over 1024 keys. FP8 sums across blocks would lose a part of it that grows with the
// length, 7% at 4k; promoted every 128 keys they lose 4e-4, and integers nothing.
TEST(EmulatorSm90, SumOfWeightsDoesNotDriftWithLength) {
  constexpr std::int64_t kRows = 64, kKeys = 1024, kColumns = 64;
  for (const DType dtype : {DType::e4m3, DType::e5m2, DType::int8}) {
    std::array<std::vector<float>, 3> wide;
    std::array<std::vector<std::uint8_t>, 3> codes;
    std::array<float, 3> scales{};
    Arguments a;
    const std::pair<ConstTensor*, Scales*> operands[] = {
        {&a.q, &a.q_scales}, {&a.k, &a.k_scales}, {&a.v, &a.v_scales}};
    for (std::size_t i = 0; i < 3; ++i) {
      const std::int64_t rows = i == 0 ? kRows : kKeys;
      wide[i].resize(static_cast<std::size_t>(rows * kColumns));
      codes[i].resize(wide[i].size() + 16);
      for (std::size_t n = 0; n < wide[i].size(); ++n)
        wide[i][n] = random_normal_value(3, i, n) + (i == 2 ? 2.0f : 0.0f);
      void* aligned = codes[i].data();
      std::size_t room = codes[i].size();
      ASSERT_NE(std::align(16, wide[i].size(), aligned, room), nullptr);
      const Tensor to = Tensor::bhsd(aligned, dtype, 1, 1, rows, kColumns);
      QuantizeOptions options;
      options.granularity = Granularity::head;
      ASSERT_TRUE(quantize(Tensor::bhsd(wide[i].data(), DType::f32, 1, 1, rows, kColumns), options,
                           to, &scales[i])
                      .ok());
      *operands[i].first = to;
      *operands[i].second = {&scales[i], Granularity::head, 64, {}};
    }
    std::vector<std::uint16_t> out(kRows * kColumns + 8);
    void* const aligned_out =
        reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(out.data()) + 15) / 16 * 16);
    a.out = Tensor::bhsd(aligned_out, DType::f16, 1, 1, kRows, kColumns);
    const Status status = attention(a, {}, kSm90);
    ASSERT_TRUE(status.ok()) << status.message();
    std::vector<double> expected(kRows * kColumns);
    ASSERT_TRUE(reference(a, {}, expected.data()).ok());
    double sum = 0, expected_sum = 0;
    for (std::size_t n = 0; n < expected.size(); ++n) {
      sum += load_element(DType::f16, aligned_out, static_cast<std::int64_t>(n));
      expected_sum += expected[n];
    }
    EXPECT_NEAR(sum / expected_sum, 1.0, dtype == DType::int8 ? 2e-4 : 1e-3) << name(dtype);
  }
}

// Scores are compared with the row's limit as integers, and negative floats compare in reverse
// order: here all are negative, and the last are the largest.
TEST(EmulatorSm90, RisingNegativeScores) {
  constexpr std::int64_t kRows = 64, kKeys = 320, kColumns = 64;
  struct alignas(16) Operand {
    std::array<std::uint16_t, kKeys * kColumns> bits{};
  };
  const auto made = std::make_unique<std::array<Operand, 4>>();
  auto& [q, k, v, out] = *made;
  for (std::int64_t i = 0; i < kKeys * kColumns; ++i) {
    const auto n = static_cast<std::size_t>(i);
    q.bits[n] = f16_from_f32(1);
    // From -400 to -80: by 2^57 after the exponential, beyond FP16's range.
    k.bits[n] = f16_from_f32(static_cast<float>(i / kColumns - 400) / kColumns);
    v.bits[n] = f16_from_f32(random_normal_value(5, 2, n));
  }
  const auto tensor = [](Operand& x, std::int64_t rows) {
    return Tensor::bhsd(x.bits.data(), DType::f16, 1, 1, rows, kColumns);
  };
  Arguments a;
  a.q = tensor(q, kRows);
  a.k = tensor(k, kKeys);
  a.v = tensor(v, kKeys);
  a.out = tensor(out, kRows);
  const Result<Problem> run_problem = problem_of(a, {});
  ASSERT_TRUE(run_problem.ok()) << run_problem.status().message();
  std::vector<double> expected(kRows * kColumns);
  ASSERT_TRUE(reference(a, {}, expected.data()).ok());
  int kernels = 0;
  for (const emulator::EmulatedSm90Forward& kernel : emulator::sm90_forward_kernels()) {
    const Sm90ForwardConfig& c = kernel.config;
    if (c.element != Element::f16 || c.output.element != Element::f16 || c.head_dim != kColumns ||
        c.pack_gqa || c.output.amax || c.modifiers.block_mask != 0)
      continue;
    ++kernels;
    out.bits.fill(f16_from_f32(99));
    const Status status = run_emulated(kernel, narrow_sm90_chip(), *run_problem, a, {},
                                       [](const emulator::Machine&) {});
    ASSERT_TRUE(status.ok()) << status.message();
    int wrong = 0;  // or NaN
    for (std::size_t n = 0; n < expected.size(); ++n) {
      const double got = load_element(DType::f16, out.bits.data(), static_cast<std::int64_t>(n));
      if (!(std::abs(got - expected[n]) <= 2e-3)) ++wrong;
    }
    EXPECT_EQ(wrong, 0) << brief_text(c);
  }
  EXPECT_GE(kernels, 9);  // at least the rows of a table
}

TEST(EmulatorSm90, UnknownChipsAreRefused) {
  Problem p;
  p.batch = p.heads_q = p.heads_kv = p.seqlen_q = p.seqlen_kv = 1;
  p.head_dim = p.head_dim_v = 64;
  const Result<Plan> made = plan(p, {Device::Kind::emulator, 75});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().message(),
            "device is emulator:75; supported here: emulator, emulator:90.");
}

}  // namespace
}  // namespace octavo::evidence
