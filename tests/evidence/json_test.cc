// SPDX-License-Identifier: Apache-2.0
// Reports round-trip through JSON, parsed by a second reader of the schema.
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "octavo/evidence.hpp"

namespace octavo {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> keys(const Json& json) {
  std::vector<std::string> names;
  for (const auto& item : json.items()) names.push_back(item.key());
  return names;
}

void expect_envelope(const Json& json, const std::string& kind) {
  EXPECT_EQ(keys(json)[0], "schema");
  EXPECT_EQ(keys(json)[1], "kind");
  EXPECT_EQ(keys(json)[2], "version");
  EXPECT_EQ(json["schema"], kSchemaVersion);
  EXPECT_EQ(json["kind"], kind);
  EXPECT_EQ(json["version"], version());
}

TEST(JsonReport, Check) {
  CheckReport report;
  report.device = "cpu";
  report.suite = "twelve";
  report.seed = 42;
  report.cases = 2;
  report.distinct = 2;
  report.repeat = 3;
  report.kernels = 4;
  report.oracle = "cuda:0";
  report.oracle_compared = 1;
  report.oracle_difference = 0.5;
  report.emulated = 3;
  report.emulated_difference = 0.25;
  CheckRow row;
  row.precision = "fp8";
  row.format = "f16";
  row.cases = 2;
  row.failed = 1;
  row.worst_total_error = 0.125;
  row.worst_bound_ratio = std::numeric_limits<double>::infinity();
  row.worst_case = "B=1 \"quoted\"";
  report.rows.push_back(row);
  report.failures.push_back("B=1: out is wrong\nhere");
  const Json json = Json::parse(to_json(report));
  expect_envelope(json, "check");
  EXPECT_EQ(json["passed"], false);
  EXPECT_EQ(json["repeat"], 3);
  EXPECT_EQ(json["kernels"], 4);
  EXPECT_EQ(json["oracle"]["device"], "cuda:0");
  EXPECT_EQ(json["oracle"]["compared"], 1);
  EXPECT_EQ(json["oracle"]["difference"], 0.5);
  EXPECT_EQ(json["emulated"]["cases"], 3);
  EXPECT_EQ(json["emulated"]["difference"], 0.25);
  EXPECT_EQ(json["rows"][0]["worst_total_error"], 0.125);
  EXPECT_TRUE(json["rows"][0]["worst_bound_ratio"].is_null());
  EXPECT_EQ(json["rows"][0]["worst_case"], row.worst_case);
  EXPECT_EQ(json["failures"][0], report.failures[0]);
}

TEST(JsonReport, Bench) {
  BenchReport report;
  report.device = "cpu";
  report.dtype = "f16";
  report.attention.causal = Causal::top_left;
  report.attention.quantization.qk = Granularity::row;
  report.iters = 3;
  BenchRow row;
  row.shape = {"mission", 1, 8, 512, 64};
  row.kernel.kernel = "cpu_tiled";
  row.median_us = 12.5;
  row.samples_us = {12, 12.5, 13};
  row.three_loop_ratio = 9;
  row.clock_mhz = 1755;
  row.throttle = {"power cap"};
  report.stream = true;
  report.buffers = 4;
  report.rows.push_back(row);
  const Json json = Json::parse(to_json(report));
  expect_envelope(json, "bench");
  EXPECT_EQ(json["passed"], true);
  EXPECT_EQ(json["attention"]["causal"], "top_left");
  EXPECT_EQ(json["attention"]["quantization"]["qk"], "row");
  EXPECT_TRUE(json["attention"]["quantization"]["v"].is_null());
  const Json& read = json["rows"][0];
  EXPECT_EQ(read["name"], "mission");
  EXPECT_EQ(read["length"], 512);
  EXPECT_EQ(read["median_us"], 12.5);
  EXPECT_EQ(read["samples_us"].size(), 3U);
  EXPECT_EQ(read["three_loop_ratio"], 9);
  EXPECT_EQ(read["kernel"], "cpu_tiled");
  EXPECT_EQ(json["launch"], "stream");
  EXPECT_EQ(json["l2"], "warm");
  EXPECT_EQ(json["buffers"], 4);
  EXPECT_EQ(read["clock_mhz"], 1755);
  EXPECT_EQ(read["throttle"][0], "power cap");
  for (const char* absent :
       {"fma_peak_fraction", "three_loop_us", "max_error", "power_w", "empty_us"})
    EXPECT_TRUE(read.contains(absent) && read[absent].is_null()) << absent;
}

TEST(JsonReport, ExplanationAndRangeStats) {
  Explanation explanation;
  explanation.device = "cpu";
  explanation.reason = "\xFF not UTF-8";
  explanation.max_error = 1e-3;
  const Json explained = Json::parse(to_json(explanation));
  expect_envelope(explained, "explain");
  EXPECT_TRUE(explained["measured_us"].is_null());
  EXPECT_EQ(explained["max_error"], 1e-3);

  RangeStats stats;
  stats.amax = 3;
  stats.values = 7;
  stats.sqnr_db = std::numeric_limits<double>::infinity();  // an exact tensor
  const Json ranges = Json::parse(to_json(stats));
  expect_envelope(ranges, "range_stats");
  EXPECT_TRUE(ranges["sqnr_db"].is_null());
  EXPECT_EQ(ranges["values"], 7);
}

}  // namespace
}  // namespace octavo
