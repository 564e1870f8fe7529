// SPDX-License-Identifier: Apache-2.0
// The frontier: the distributions are correct, the errors are those of the runs, and combinations
// that are not served are listed.
#include "octavo/accuracy.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "evidence/cases/accuracy_data.h"
#include "evidence/oracle/oracle.h"
#include "numeric/formats.h"
#include "octavo/emulator.hpp"

namespace octavo {
namespace {

const evidence::Distribution& distribution(std::string_view name) {
  for (const evidence::Distribution& d : evidence::distributions())
    if (d.name == name) return d;
  throw std::runtime_error(std::string(name));
}

struct Moments {
  double mean = 0, deviation = 0, largest = 0;
};
Moments moments(const Tensor& t) {
  Moments m;
  double squares = 0, count = 0;
  for (std::int64_t h = 0; h < t.shape[1]; ++h)
    for (std::int64_t s = 0; s < t.shape[2]; ++s)
      for (std::int64_t d = 0; d < t.shape[3]; ++d, ++count) {
        const double x = load_element(t.dtype, t.data, h * t.stride[1] + s * t.stride[2] + d);
        m.mean += x;
        squares += x * x;
        m.largest = std::max(m.largest, std::abs(x));
      }
  m.mean /= count;
  m.deviation = std::sqrt(squares / count - m.mean * m.mean);
  return m;
}

evidence::Inputs inputs_of(const std::string& name) {
  const evidence::Distribution& d = distribution(name);
  return evidence::make_inputs(d, d.sizes[0]).value();
}

TEST(AccuracyData, OutliersAreOneInAThousandAndTenTimesAsLarge) {
  const evidence::Inputs in = inputs_of("outliers");
  for (const evidence::Inputs::Operand* x : {&in.q, &in.k, &in.v}) {
    const Moments m = moments(x->wide.view);
    EXPECT_NEAR(m.deviation, std::sqrt(1 + 0.001 * 100), 8e-3);
    EXPECT_GT(m.largest, 30);
    EXPECT_LT(m.largest, 65);
  }
}

TEST(AccuracyData, VAndKeysHaveTheirMeans) {
  const evidence::Inputs v_mean = inputs_of("v_mean");
  EXPECT_NEAR(moments(v_mean.v.wide.view).mean, 2, 0.02);
  EXPECT_NEAR(moments(v_mean.k.wide.view).mean, 0, 0.02);
  EXPECT_NEAR(moments(inputs_of("biased_keys").k.wide.view).deviation, std::sqrt(17.0), 0.3);
}

// Softmax of a row with 12 more on key 0 gives key 0, over 512 keys, e^12 / (e^12 + 511 e^0.5).
TEST(AccuracyData, SinkTakesNearlyAllWeight) {
  const evidence::Distribution& d = distribution("sink");
  evidence::Case c = d.sizes[0];
  evidence::Inputs in = evidence::make_inputs(d, c).value();
  const auto truth = evidence::exact_truth(c, in, evidence::cpu_oracle).value();
  const Tensor& v = in.v.wide.view;
  double squares = 0, sink = 0;
  for (const double x : truth.original) squares += x * x;
  for (std::int64_t i = 0; i < 64; ++i) sink += std::pow(load_element(v.dtype, v.data, i), 2);
  EXPECT_NEAR(std::sqrt(sink / 64), 0.05, 0.02);
  const double rms = std::sqrt(squares / static_cast<double>(truth.original.size()));
  EXPECT_NEAR(rms, 0.05, 0.02) << "and the output is little but the sink's V";
}

AccuracyOptions small() {
  AccuracyOptions options;
  options.data = {"v_mean", "outliers_rotated"};
  options.seeds = 1;
  options.most_keys = 512;
  return options;
}

TEST(Accuracy, EveryPrecisionHasARow) {
  const auto report = accuracy(small());
  ASSERT_TRUE(report.ok()) << report.status().message();
  // outliers_rotated has 2048 keys and is left out.
  ASSERT_EQ(report->rows.size(), kAllPrecisions.size() - 1);
  for (const AccuracyRow& row : report->rows) {
    SCOPED_TRACE(name(row.precision));
    EXPECT_EQ(row.data, "v_mean");
    EXPECT_EQ(row.seqlen_kv, 512);
    EXPECT_EQ(row.not_available, "");
    EXPECT_EQ(row.total.not_finite, 0);
    EXPECT_GT(row.total.max_abs, 0);
    EXPECT_LT(row.total.max_abs, 0.2);
    EXPECT_GT(row.total.cosine, 0.999);
    EXPECT_LT(std::abs(row.kernel_bias), 1e-3);
    EXPECT_FALSE(row.us);
  }
  const auto of = [&](Precision p) {
    for (const AccuracyRow& row : report->rows)
      if (row.precision == p) return row;
    throw std::runtime_error("no row");
  };
  EXPECT_LT(of(Precision::fp16).total.rmse, of(Precision::bf16).total.rmse);
  EXPECT_LT(of(Precision::fp16).total.rmse, of(Precision::int8).total.rmse);
  EXPECT_LT(of(Precision::int8).total.rmse, of(Precision::fp8).total.rmse);
  // The CPU's products are exact: only the rounding of the output remains.
  EXPECT_LT(of(Precision::fp8).kernel.rmse, 0.1 * of(Precision::fp8).total.rmse);
}

TEST(Accuracy, UnservedPrecisionsAreListed) {
  if (!has_emulator()) GTEST_SKIP() << "built without the emulator";
  AccuracyOptions options = small();
  options.device = {Device::Kind::emulator, 0};
  options.precisions = {Precision::int8_mixed};
  const auto report = accuracy(options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->rows.size(), 1U);
  EXPECT_NE(report->rows[0].not_available.find("int8_mixed"), std::string::npos);
  const auto json = nlohmann::json::parse(to_json(*report));
  EXPECT_TRUE(json.at("rows")[0].at("total").is_null());
}

TEST(Accuracy, TheMixedModesAreMeasuredOnHopper) {
  if (!has_emulator()) GTEST_SKIP() << "built without the emulator";
  AccuracyOptions options = small();
  options.device = {Device::Kind::emulator, 90};
  options.precisions = {Precision::fp8_mixed, Precision::int8_mixed};
  const auto report = accuracy(options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->rows.size(), 2U);
  for (const AccuracyRow& row : report->rows) {
    EXPECT_EQ(row.not_available, "");
    EXPECT_EQ(row.kernel_name, "sm90_forward");
    EXPECT_LT(row.kernel.rmse, 6e-4) << "outputs of about 2 rounded to f16";
    EXPECT_GT(row.total.rmse, 1.5 * row.kernel.rmse) << "codes of Q and K cost more";
  }
}

// With its own scales, Q's per row and K's per block of 64; only Q and K are quantized.
TEST(Accuracy, Int8MixedStaysWithinOnePercent) {
  AccuracyOptions options;
  options.precisions = {Precision::int8_mixed};
  options.data = {"normal"};
  options.seeds = 3;
  options.most_keys = 512;
  const auto mission = accuracy(options);
  ASSERT_TRUE(mission.ok()) << mission.status().message();
  ASSERT_EQ(mission->rows.size(), 1U);
  EXPECT_LE(mission->rows[0].total.max_abs, 1e-2);
  EXPECT_LE(mission->rows[0].total.rmse, 8e-4);
  options.data = {"outliers_rotated"};
  options.seeds = 1;
  options.most_keys = 2048;
  const auto rotated = accuracy(options);
  ASSERT_TRUE(rotated.ok()) << rotated.status().message();
  ASSERT_EQ(rotated->rows.size(), 1U);
  EXPECT_TRUE(rotated->rows[0].hadamard);
  EXPECT_LE(rotated->rows[0].total.rmse, 3e-3);
}

TEST(Accuracy, BadOptionsGetAnErrorSentence) {
  AccuracyOptions options;
  options.data = {"gaussian"};
  EXPECT_EQ(accuracy(options).status().message().find("data is 'gaussian'; supported: normal, "),
            0U);
  options = {};
  options.seeds = 0;
  EXPECT_EQ(accuracy(options).status().message(), "seeds is 0; supported: 1 to 1000.");
  options = {};
  options.most_keys = 100;
  EXPECT_EQ(accuracy(options).status().message(), "keys is 100; supported: 512 or more.");
  options = {};
  options.precisions = {Precision::native};
  EXPECT_EQ(accuracy(options).status().message().find("precision is native"), 0U);
}

TEST(Accuracy, PlotHasAPointForEachTime) {
  AccuracyReport report;
  report.device = "cuda:0";
  EXPECT_EQ(to_svg(report).status().message().find("plot is of a report of cuda:0"), 0U);
  for (const auto& [precision, us, error] : {std::tuple{Precision::fp16, 5.0, 3e-4},
                                             {Precision::fp8, 4.0, 3e-2},
                                             {Precision::int8_mixed, 0.0, 0.0}}) {
    AccuracyRow row;
    row.data = "normal";
    row.precision = precision;
    if (us > 0) row.us = us;
    if (precision == Precision::fp8) row.prequantized_us = 3.0;
    row.total.relative_rmse = error;
    report.rows.push_back(row);
  }
  const std::string svg = to_svg(report).value();
  const auto count = [&svg](std::string_view word) {
    std::size_t found = 0;
    for (std::size_t at = svg.find(word); at != std::string::npos; at = svg.find(word, at + 1))
      ++found;
    return found;
  };
  EXPECT_EQ(svg.find("<svg xmlns="), 0U);
  EXPECT_EQ(count("<circle"), 3U) << "two times, and one of prequantized operands";
  EXPECT_EQ(count("class=\"prequantized\""), 1U);
  EXPECT_EQ(count(">fp8<"), 1U);
  EXPECT_EQ(count("int8_mixed"), 0U);
  EXPECT_EQ(count("</svg>"), 1U);
}

}  // namespace
}  // namespace octavo
