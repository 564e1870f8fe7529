// SPDX-License-Identifier: Apache-2.0
// The GPU's fp64 oracle, run in the emulator, against the reference on the CPU.
#include "device/oracle/oracle.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "emulator/machine.h"
#include "emulator/modified_call.h"
#include "evidence/cases/inputs.h"
#include "gpu/forward/launch_oracle.h"
#include "runtime/emulated/emulated_launch.h"

namespace octavo {
namespace {

using namespace modified;

struct Results {
  std::vector<double> out, lse;
};

Results run_oracle(const Arguments& a, const Options& options) {
  const Problem problem = problem_of(a, options).value();
  const auto rows = static_cast<std::size_t>(a.q.shape[0] * problem.heads_q * a.q.shape[2]);
  Results r{std::vector<double>(rows * static_cast<std::size_t>(problem.head_dim), 0.0),
            std::vector<double>(rows, -kInf)};
  OracleOutputs outputs;
  outputs.out = r.out.data();
  outputs.lse = r.lse.data();
  outputs.warps = 2 * (oracle::kThreads / 32);
  std::vector<double> scores(static_cast<std::size_t>(outputs.warps * problem.seqlen_kv));
  outputs.scores = scores.data();
  const oracle::Params params = oracle_params(problem, a, {}, nullptr, 0, outputs);
  using Use = emulator::GlobalMemory::Use;
  emulator::GlobalMemory memory;
  const auto add = [&memory](const char* name, const ConstTensor& t) {
    memory.add({name, t.data, size_bytes(t.dtype), t.shape, t.stride, Use::read});
  };
  add("q", a.q);
  add("k", a.k);
  add("v", a.v);
  add("bias", a.bias);
  add("mask", a.mask);
  const auto words = [&memory](const char* name, const void* data, std::int64_t count) {
    memory.add_array(name, data, static_cast<std::size_t>(count) * 4, Use::read);
  };
  words("slopes", a.alibi_slopes, (problem.batch - 1) * a.alibi_batch_stride + problem.heads_q);
  words("sinks", a.sinks, problem.heads_q);
  words("seqlens_q", a.seqlens_q, problem.batch);
  words("seqlens_kv", a.seqlens_kv, problem.batch);
  words("leftpad_q", a.leftpad_q, problem.batch);
  words("leftpad_kv", a.leftpad_kv, problem.batch);
  words("q_scales", a.q_scales.data, problem.batch * problem.heads_q * problem.seqlen_q);
  words("k_scales", a.k_scales.data, problem.batch * problem.heads_kv * problem.seqlen_kv);
  words("v_scales", a.v_scales.data, problem.batch * problem.heads_kv);
  add_block_mask(memory, a.block_mask);
  memory.add_array("out", r.out.data(), r.out.size() * 8, Use::write);
  memory.add_array("lse", r.lse.data(), r.lse.size() * 8, Use::write);
  memory.add_array("scores", scores.data(), scores.size() * 8, Use::write);
  emulator::Launch launch;
  launch.kernel = "oracle_forward";
  launch.arch = 90;
  launch.blocks = 2;
  launch.threads = oracle::kThreads;
  launch.entry = [&] { oracle::oracle_forward(params); };
  emulator::Machine machine(launch, memory, {});
  machine.run();
  EXPECT_TRUE(machine.report().clean()) << machine.report().text();
  return r;
}

void compare_with_reference(const Arguments& a, const Options& options, const std::string& name) {
  const Results found = run_oracle(a, options);
  Results wanted = found;
  ASSERT_TRUE(reference(a, options, wanted.out.data(), wanted.lse.data()).ok());
  const auto same = [](double x, double y) {
    if (std::isnan(x) || std::isnan(y)) return std::isnan(x) && std::isnan(y);
    return x == y || std::abs(x - y) <= 1e-12 * (1 + std::abs(y));
  };
  for (std::size_t i = 0; i < wanted.out.size(); ++i)
    ASSERT_TRUE(same(found.out[i], wanted.out[i]))
        << name << " out " << i << ": " << found.out[i] << " wanted " << wanted.out[i];
  for (std::size_t i = 0; i < wanted.lse.size(); ++i)
    ASSERT_TRUE(same(found.lse[i], wanted.lse[i]))
        << name << " lse " << i << ": " << found.lse[i] << " wanted " << wanted.lse[i];
}

constexpr Shape kSmall{3, 2, 1, 15, 21, 8};

TEST(EmulatedOracle, EveryPairOfFeatures) {
  std::uint64_t number = 0;
  for (unsigned first = 1; first <= kPadded; first *= 2)
    for (unsigned second = first; second <= kPadded; second *= 2) {
      Call call(number % 2 == 0 ? DType::f16 : DType::bf16, kSmall, first | second, number);
      compare_with_reference(call.arguments(), call.options(), call.name());
      ++number;
    }
}

TEST(EmulatedOracle, AllFeaturesAndNone) {
  for (const std::uint64_t number : {0u, 1u, 2u, 3u, 4u, 5u})
    for (const unsigned features : {unsigned{kEvery}, 0u}) {
      Call call(DType::f16, kSmall, features, number);
      compare_with_reference(call.arguments(), call.options(), call.name());
    }
}

TEST(EmulatedOracle, ScalesOfRowsAndBlocks) {
  for (const Granularity granularity : {Granularity::row, Granularity::block}) {
    Call call(DType::f16, kSmall, kEvery - kPadded, 0);
    const QuantizedInputs quantized(call.arguments(), DType::int8, granularity);
    compare_with_reference(call.arguments(), call.options(), call.name());
  }
}

TEST(EmulatedOracle, BlockMasks) {
  for (const std::int64_t size : {64, 128})
    for (std::uint64_t seed = 1; seed < 3; ++seed) {
      evidence::Case c;
      c.heads_q = c.heads_kv = 2;
      c.seqlen_q = size + 6;
      c.seqlen_kv = 2 * size + 13;
      c.head_dim = 8;
      c.block_mask = size;
      c.seed = seed;
      const Result<evidence::Inputs> in = evidence::make_inputs(c);
      ASSERT_TRUE(in.ok()) << in.status().message();
      compare_with_reference(in->given, c.options, c.name());
    }
}

}  // namespace
}  // namespace octavo
