// SPDX-License-Identifier: Apache-2.0
// A tiny bench gives consistent numbers, and bad options get an error sentence.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "evidence/oracle/three_loop.h"
#include "octavo/evidence.hpp"

namespace octavo {
namespace {

BenchOptions tiny() {
  BenchOptions options;
  options.cases = {{"tiny", 1, 2, 48, 32}};
  options.iters = 3;
  options.warmup = 1;
  return options;
}

TEST(Bench, TinyShape) {
  BenchOptions options = tiny();
  std::int64_t last = 0;
  options.progress = [&last](std::int64_t done, std::int64_t total) {
    EXPECT_EQ(total, 3);
    EXPECT_GE(done, last);
    last = done;
  };
  const auto report = bench(options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_TRUE(report->passed()) << report->failures[0];
  EXPECT_EQ(last, 3);
  EXPECT_EQ(report->device, "cpu");
  EXPECT_EQ(report->dtype, "f16");
  EXPECT_GE(report->threads, 1);
  ASSERT_EQ(report->rows.size(), 1U);
  const BenchRow& row = report->rows[0];
  EXPECT_EQ(row.shape.name, "tiny");
  EXPECT_EQ(row.samples_us.size(), 3U);
  EXPECT_GT(row.low_us, 0);
  EXPECT_LE(row.low_us, row.median_us);
  EXPECT_LE(row.median_us, row.high_us);
  EXPECT_NEAR(row.gflops, 4.0 * 2 * 48 * 48 * 32 / row.median_us * 1e-3, 1e-9);
  ASSERT_TRUE(row.fma_peak_fraction && row.fma_peak_gflops && report->fma_peak_gflops);
  EXPECT_GT(*row.fma_peak_gflops, 1);
  EXPECT_NEAR(*row.fma_peak_fraction, row.gflops / *row.fma_peak_gflops, 1e-12);
  ASSERT_TRUE(row.three_loop_us && row.three_loop_ratio);
  EXPECT_NEAR(*row.three_loop_ratio, *row.three_loop_us / row.median_us, 1e-9);
  ASSERT_TRUE(row.max_error);
  EXPECT_GT(*row.max_error, 0);
  EXPECT_LT(*row.max_error, 2e-3);
  EXPECT_FALSE(row.kernel.kernel.empty());
}

// Quantizing in advance gives the same result as inside the call, to the last bit of its error.
TEST(Bench, OperandsQuantizedInAdvance) {
  for (const Precision precision : {Precision::fp8, Precision::int8, Precision::sim8}) {
    SCOPED_TRACE(name(precision));
    BenchOptions options = tiny();
    options.three_loop = false;
    options.attention.precision = precision;
    options.attention.quantization.hadamard = true;
    const auto in_call = bench(options);
    options.prequantized = true;
    for (const VLayout layout : kAllVLayouts) {
      options.prequantized_v = layout;
      const auto before = bench(options);
      ASSERT_TRUE(in_call.ok() && before.ok()) << before.status().message();
      EXPECT_TRUE(before->prequantized && before->prequantized_v == layout && before->passed());
      EXPECT_EQ(before->rows[0].max_error, in_call->rows[0].max_error);
    }
  }
  BenchOptions options = tiny();
  options.prequantized = true;
  options.attention.precision = Precision::fp8_mixed;
  EXPECT_EQ(bench(options).status().message(),
            "precision is fp8_mixed; supported: fp8, fp8_fast, int8, sim8 without smooth_k, where "
            "operands are quantized before the call.");
}

TEST(Bench, EveryKindOfInputAndMask) {
  BenchOptions options = tiny();
  options.three_loop = false;
  options.attention.causal = Causal::bottom_right;
  options.attention.window_left = 9;
  for (const DType dtype : kAllDTypes) {
    options.dtype = dtype;
    const auto report = bench(options);
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_TRUE(report->passed()) << name(dtype) << ": " << report->failures[0];
    EXPECT_FALSE(report->rows[0].three_loop_us);
  }
  options.dtype = DType::f32;
  options.check_correctness = false;
  options.attention.precision = Precision::int8;
  const auto report = bench(options);
  ASSERT_TRUE(report.ok());
  EXPECT_FALSE(report->rows[0].max_error);
  EXPECT_EQ(report->rows[0].shape.name, "tiny");
}

TEST(Bench, FewQueriesWithPackGqa) {
  BenchOptions options;
  options.cases = {{"", 1, 4, 3, 32, 2, 90}};
  options.iters = 2;
  const auto report = bench(options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_TRUE(report->passed()) << report->failures[0];
  const BenchRow& row = report->rows.at(0);
  EXPECT_EQ(row.shape.name, "1,4,3,32 kv-heads=2 kv-length=90");
  EXPECT_NEAR(row.gflops, 4.0 * 4 * 3 * 90 * 32 / row.median_us * 1e-3, 1e-9);
  EXPECT_FALSE(row.three_loop_us);
  ASSERT_TRUE(row.max_error);
  options.cases[0].heads_kv = 3;
  EXPECT_EQ(bench(options).status().message(),
            "heads_kv is 3; supported: divisors of heads_q, here 4.");
  options.cases[0].heads_kv = 0;
  EXPECT_EQ(bench(options).status().message(), "heads_kv is 0; supported: 1 or more.");
}

TEST(Bench, BadOptionsGetAnErrorSentence) {
  const auto message = [](const BenchOptions& options) {
    const auto report = bench(options);
    EXPECT_FALSE(report.ok());
    EXPECT_EQ(report.status().code(), ErrorCode::invalid_argument);
    return report.status().message();
  };
  BenchOptions options = tiny();
  options.iters = 0;
  EXPECT_EQ(message(options), "iters is 0; supported: 1 to 1000000.");
  options = tiny();
  options.warmup = -1;
  EXPECT_EQ(message(options), "warmup is -1; supported: 0 to 1000000.");
  options = tiny();
  options.config = "tile=1";
  EXPECT_EQ(message(options),
            "config is \"tile=1\"; supported: no configuration on cpu, which chooses its own.");
  options = tiny();
  options.cold_l2 = true;
  options.buffers = 3;
  EXPECT_EQ(
      message(options),
      "the timing is launch graph, L2 cold, 3 buffers on cpu; supported: those of a GPU there, "
      "none elsewhere.");
  options = tiny();
  options.device.kind = Device::Kind::cuda;
  options.buffers = 0;
  EXPECT_EQ(message(options), "buffers is 0; supported: 1 to 1000.");
  options = tiny();
  options.cases[0].heads = 0;
  EXPECT_EQ(message(options), "heads is 0; supported: 1 or more.");
  options = tiny();
  options.cases[0].length = std::int64_t{1} << 40;
  EXPECT_FALSE(message(options).empty());
}

// The baseline must be right, or the ratio to it means nothing.
TEST(ThreeLoop, AgreesWithTheOracle) {
  constexpr std::int64_t kBatch = 2, kHeads = 3, kLength = 37, kDim = 16;
  std::vector<float> q(kBatch * kHeads * kLength * kDim), k(q.size()), v(q.size()), out(q.size());
  Arguments a;
  const auto view = [](std::vector<float>& x) {
    return Tensor::bhsd(x.data(), DType::f32, kBatch, kHeads, kLength, kDim);
  };
  std::uint64_t stream = 0;
  for (auto* x : {&q, &k, &v}) ASSERT_TRUE(random_normal(view(*x), 3, stream++).ok());
  a.q = view(q);
  a.k = view(k);
  a.v = view(v);
  a.out = view(out);
  for (const Causal causal : {Causal::none, Causal::top_left}) {
    Options options;
    options.causal = causal;
    evidence::three_loop(q.data(), k.data(), v.data(), out.data(), kBatch, kHeads, kLength, kDim,
                         options, 3);
    std::vector<double> expected(out.size());
    ASSERT_TRUE(reference(a, options, expected.data()).ok());
    const ErrorStats stats = compare(a.out, expected.data());
    EXPECT_LT(stats.max_abs, 2e-6);
    EXPECT_EQ(stats.not_finite, 0);
  }
}

}  // namespace
}  // namespace octavo
