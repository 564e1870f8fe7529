// SPDX-License-Identifier: Apache-2.0
// Kernels with a block mask in the emulator, against the oracle.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "emulator/kernels/sm80_forward.h"
#include "emulator/kernels/sm90_forward.h"
#include "emulator/long.h"
#include "evidence/cases/block_mask_cases.h"
#include "evidence/cases/emulated_cases.h"
#include "evidence/cases/inputs.h"
#include "gpu/jit/config_text.h"
#include "numeric/formats.h"
#include "octavo/evidence.hpp"
#include "runtime/emulated/emulated_gpu.h"
#include "runtime/emulated/emulated_launch.h"

namespace octavo::evidence {
namespace {

// Of a case whose types a kernel takes; its 8-bit operands may be the precision's.
double tolerance_of(const Case& c) {
  if (is_8bit(c.input) || c.options.precision != Precision::native) return 0.1;
  return c.input == DType::bf16 ? 0.03 : 5e-3;
}

// A case of the suite that the kernel serves, of lengths that the emulator can run in a second.
template <class Config>
Case case_for(std::uint64_t seed, const Config& config) {
  const ModifierConfig& m = config.modifiers;
  const Case types = cases_for(config).front();
  Case c = random_block_mask_case(seed);
  c.input = types.input;
  c.v = types.v;
  c.out = types.out;
  c.qk_scales = types.qk_scales;
  c.v_scales = types.v_scales;
  c.options.precision = types.options.precision;
  c.options.quantization = types.options.quantization;
  c.lse = c.lse && types.lse;
  c.head_dim = config.head_dim - (seed % 3 == 0 && element_bytes(config.element) == 2 ? 8 : 0);
  c.head_dim_v = 0;  // the kernels here have equal columns
  c.layout = seed % 2 == 0 ? Layout::bhsd : Layout::bshd;
  c.seqlen_q = std::min<std::int64_t>(c.seqlen_q, 200);
  c.seqlen_kv = std::min<std::int64_t>(c.seqlen_kv, 400);
  c.heads_q = std::min(c.heads_q, 2 * c.heads_kv);
  c.block_mask = m.block_mask;
  if (!m.softcap) c.options.softcap = 0;
  if (c.bias) c.bias = DType::f16;
  if (!m.bias) c.bias.reset();
  c.mask = c.mask && m.mask;
  c.alibi = c.alibi && m.alibi;
  c.sinks = c.sinks && m.sinks;
  return c;
}

// The largest difference of the output and of the LSE from the oracle on the operands that the
// kernel reads; infinite if one is NaN.
double worst_difference(const Case& c, const Inputs& in, const Arguments& operands) {
  const auto rows = static_cast<std::size_t>(c.batch * c.heads_q * c.seqlen_q);
  std::vector<double> out(rows * static_cast<std::size_t>(c.head_dim)), lse(rows);
  Options options = c.options;
  options.precision = Precision::native;
  options.quantization = {};
  EXPECT_TRUE(reference(operands, options, out.data(), lse.data()).ok());
  double worst = 0;
  const auto compare = [&worst](double x, double wanted) {
    if (x == wanted) return;  // also two infinities
    const double difference = std::abs(x - wanted);
    worst = std::isnan(difference) ? HUGE_VAL : std::max(worst, difference);
  };
  const Tensor& o = in.out.view;
  const Tensor& l = in.lse.view;
  for (std::size_t row = 0; row < rows; ++row) {
    const auto n = static_cast<std::int64_t>(row);
    const std::int64_t b = n / c.seqlen_q / c.heads_q, h = n / c.seqlen_q % c.heads_q,
                       i = n % c.seqlen_q;
    for (std::int64_t d = 0; d < c.head_dim; ++d)
      compare(
          load_element(o.dtype, o.data, b * o.stride[0] + h * o.stride[1] + i * o.stride[2] + d),
          out[row * static_cast<std::size_t>(c.head_dim) + static_cast<std::size_t>(d)]);
    if (c.lse)
      compare(load_element(l.dtype, l.data, b * l.stride[0] + h * l.stride[1] + i * l.stride[2]),
              lse[row]);
  }
  return worst;
}

// What a kernel reads of a call: Hopper kernels take quantized operands and a transposed V.
Result<Arguments> arguments_for(const Sm80ForwardConfig&, const Problem&, const Arguments& given,
                                std::vector<std::byte>&) {
  return given;
}
Result<Arguments> arguments_for(const Sm90ForwardConfig& config, const Problem& problem,
                                const Arguments& given, std::vector<std::byte>& memory) {
  return with_operands_for(config, problem, given, memory);
}

template <class Kernels>
void expect_right(const Kernels& kernels, const GpuInfo& chip, int cases, int at_least) {
  int looked_at = 0;
  for (const auto& kernel : kernels) {
    if (kernel.config.modifiers.block_mask == 0) continue;
    ++looked_at;
    for (int seed = 1; seed <= cases; ++seed) {
      const Case c = case_for(static_cast<std::uint64_t>(seed), kernel.config);
      Result<Inputs> in = make_inputs(c);
      ASSERT_TRUE(in.ok()) << in.status().message();
      const Result<Problem> problem = problem_of(in->given, c.options);
      ASSERT_TRUE(problem.ok()) << problem.status().message();
      poison_outputs(*in);
      emulator::Settings settings;
      if (seed % 2 == 0) settings.seed = static_cast<std::uint64_t>(seed);
      std::vector<std::byte> memory;
      const Result<Arguments> given = arguments_for(kernel.config, *problem, in->given, memory);
      ASSERT_TRUE(given.ok()) << given.status().message();
      const Status status = run_emulated(
          kernel, chip, *problem, *given, settings, [&](const emulator::Machine& machine) {
            EXPECT_TRUE(machine.report().clean()) << c.name() << machine.report().text();
          });
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_LT(worst_difference(c, *in, *given), tolerance_of(c))
          << brief_text(kernel.config) << " " << c.name();
    }
  }
  EXPECT_EQ(looked_at, at_least);
}

TEST(EmulatorBlockMask, Sm80KernelsMatchTheOracle) {
  const GpuInfo& chip = emulated_gpu({Device::Kind::emulator, 0}).value()->info;
  expect_right(emulator::sm80_forward_kernels(), chip, random_problems(4), 3);
}

TEST(EmulatorBlockMask, HopperKernelsMatchTheOracle) {
  expect_right(emulator::sm90_forward_kernels(), narrow_sm90_chip(), random_problems(5), 7);
}

// The plan of a problem takes the kernel of its family, and lists that do not ascend are refused.
TEST(EmulatorBlockMask, PlansTakeTheKernel) {
  for (const int arch : {0, 90}) {
    Case c;
    c.seqlen_q = 70;
    c.seqlen_kv = 200;
    c.block_mask = 64;
    c.seed = 3;
    Result<Inputs> in = make_inputs(c);
    ASSERT_TRUE(in.ok());
    const Device device{Device::Kind::emulator, arch};
    const Result<Explanation> explanation = explain(problem_of(in->given).value(), device);
    ASSERT_TRUE(explanation.ok()) << explanation.status().message();
    EXPECT_EQ(explanation->kernel, arch == 90 ? "sm90_forward" : "sm80_forward");
    EXPECT_NE(explanation->config.find(".block_mask=64"), std::string::npos);
    poison_outputs(*in);
    const Status status = attention(in->given, c.options, device);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_LT(worst_difference(c, *in, in->given), tolerance_of(c));
    in->block_mask.num_blocks[0] = 1;
    in->block_mask.indices[0] = 9;
    EXPECT_EQ(attention(in->given, c.options, device).code(), ErrorCode::invalid_argument);
  }
}

}  // namespace
}  // namespace octavo::evidence
