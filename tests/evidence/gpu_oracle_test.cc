// SPDX-License-Identifier: Apache-2.0
// The oracle on a GPU against the oracle on the CPU, if there is a GPU.
#include "evidence/oracle/gpu_oracle.h"

#include <gtest/gtest.h>

#include <cmath>

#include "numeric/formats.h"

namespace octavo::evidence {
namespace {

constexpr Device kGpu{Device::Kind::cuda, 0};

TEST(GpuOracle, AgreesWithTheCpuOracle) {
  const Result<Oracle> oracle = gpu_oracle(kGpu);
  if (!oracle.ok()) GTEST_SKIP() << oracle.status().message();
  std::vector<Case> cases = covering_cases(11);
  for (Case& c : preset_cases(11))
    if (c.seqlen_q < 1000) cases.push_back(c);  // the long cases judge only some rows
  for (const Case& c : cases) {
    const auto inputs = make_inputs(c);
    ASSERT_TRUE(inputs.ok());
    const auto on_gpu = make_truth(c, *inputs, {*oracle, true});
    const auto on_cpu = make_truth(c, *inputs, {cpu_oracle, true});
    ASSERT_TRUE(on_gpu.ok()) << on_gpu.status().message();
    ASSERT_TRUE(on_cpu.ok()) << on_cpu.status().message();
    EXPECT_LE(oracle_difference(*on_gpu, *on_cpu), 1) << c.name();
  }
}

TEST(GpuOracle, WithoutAGpuGivesAnErrorSentence) {
  const Result<Oracle> oracle = gpu_oracle({Device::Kind::cuda, 99});
  ASSERT_FALSE(oracle.ok());
  EXPECT_FALSE(oracle.status().message().empty());
}

// Equal, different by a rounding, by more than that, and of another size.
TEST(GpuOracle, DifferencesAreMeasured) {
  Case c;
  c.heads_q = c.heads_kv = 2;
  c.seqlen_q = c.seqlen_kv = 20;
  const auto inputs = make_inputs(c);
  ASSERT_TRUE(inputs.ok());
  const Truth truth = make_truth(c, *inputs, {cpu_oracle, true}).value();
  EXPECT_EQ(oracle_difference(truth, truth), 0);
  Truth other = truth;
  other.original[5] += 1e-16;
  EXPECT_GT(oracle_difference(truth, other), 0);
  EXPECT_LE(oracle_difference(truth, other), 1);
  other.quantized_lse[3] += 1e-9;
  EXPECT_GT(oracle_difference(truth, other), 1);
  other = truth;
  other.reference16[7] += 0.1;
  EXPECT_GT(oracle_difference(truth, other), 1);
  other = truth;
  other.original.pop_back();
  EXPECT_GT(oracle_difference(truth, other), 1);
  other = truth;
  other.original[0] = NAN;
  EXPECT_GT(oracle_difference(truth, other), 1);
}

// With equal keys the answer is the first row of V. A sum over many keys drifts from it, and that
// is no disagreement.
TEST(GpuOracle, DriftOfALongSumIsAllowed) {
  Case c;
  c.heads_q = c.heads_kv = 2;
  c.seqlen_q = 4;
  c.seqlen_kv = 3001;
  c.values = InputValues::equal_keys;
  const auto inputs = make_inputs(c);
  ASSERT_TRUE(inputs.ok());
  const Truth truth = make_truth(c, *inputs, {cpu_oracle, true}).value();
  Truth exact = truth;
  const ConstTensor& v = inputs->given.v;
  for (std::size_t r = 0; r < truth.rows.size(); ++r)
    for (std::int64_t d = 0; d < c.head_dim; ++d)
      exact.original[r * static_cast<std::size_t>(c.head_dim) + static_cast<std::size_t>(d)] =
          load_element(v.dtype, v.data,
                       truth.rows[r].batch * v.stride[0] + truth.rows[r].head * v.stride[1] + d);
  const double difference = oracle_difference(truth, exact);
  EXPECT_GT(difference, 64.0 / 3001);
  EXPECT_LE(difference, 1);
}

}  // namespace
}  // namespace octavo::evidence
