// SPDX-License-Identifier: Apache-2.0
// The thresholds file, and the comparison of a value with a threshold.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "evidence/default_thresholds.h"
#include "evidence/gates/gate.h"
#include "files/bounded_json.h"

namespace octavo {
namespace {

Result<Threshold> read_threshold(const nlohmann::json& json) {
  constexpr std::array<std::string_view, 4> kGates = {"compile", "correctness", "performance",
                                                      "counters"};
  Threshold t;
  t.gate = json.at("gate");
  t.name = json.at("name");
  if (json.contains("at_least")) t.at_least = json.at("at_least").get<double>();
  if (json.contains("at_most")) t.at_most = json.at("at_most").get<double>();
  t.enforced = json.value("enforced", true);
  t.kernels = json.value("kernels", "");
  t.min_gflop = json.value("min_gflop", 0.0);
  t.verdict = json.at("verdict");
  t.reason = json.at("reason");
  if (std::find(kGates.begin(), kGates.end(), t.gate) == kGates.end())
    return invalid("thresholds", fmt::format("gate \"{}\"", t.gate),
                   "compile, correctness, performance, counters");
  if (t.at_least.has_value() == t.at_most.has_value())
    return invalid("thresholds", fmt::format("\"{}\"", t.name),
                   "entries with one of at_least and at_most");
  if (t.reason.empty() || t.verdict.empty())
    return invalid("thresholds", fmt::format("\"{}\"", t.name),
                   "entries with a verdict and a reason");
  return t;
}

}  // namespace

Result<std::vector<Threshold>> gate_thresholds(std::string_view text) {
  return without_exceptions([&]() -> Result<std::vector<Threshold>> {
    if (text.empty()) text = evidence::kDefaultThresholds;
    std::vector<Threshold> list;
    try {
      if (nesting_of(text) > kReportNesting)
        return invalid("thresholds", "JSON of many brackets", "reports of octavo --json");
      const nlohmann::json json = nlohmann::json::parse(text);
      if (json.at("kind") != "thresholds")
        return invalid("thresholds", fmt::format("kind {}", json.at("kind").dump()),
                       "kind \"thresholds\"");
      for (const nlohmann::json& entry : json.at("thresholds")) {
        Result<Threshold> threshold = read_threshold(entry);
        if (!threshold.ok()) return threshold.status();
        list.push_back(std::move(threshold).value());
      }
    } catch (const nlohmann::json::exception& error) {
      return invalid("thresholds", error.what(), "JSON as docs/json.md has it");
    }
    return list;
  });
}

namespace evidence {

void check_threshold(GateResult& result, const std::vector<Threshold>& thresholds,
                     std::string_view name, const std::string& subject, std::string_view kernel,
                     double gflop, double value) {
  for (const Threshold& t : thresholds) {
    if (t.gate != result.name || t.name != name || !kernel.starts_with(t.kernels) ||
        gflop < t.min_gflop)
      continue;
    GateFinding finding{.subject = subject, .threshold = t.name, .value = value};
    finding.limit = t.at_least ? fmt::format("at least {}", *t.at_least)
                               : fmt::format("at most {}", *t.at_most);
    // Not `value < limit`, so that a NaN violates every threshold.
    finding.held = t.at_least ? value >= *t.at_least : value <= *t.at_most;
    finding.enforced = t.enforced;
    if (!finding.held && t.enforced)
      result.failures.push_back(
          fmt::format("{}: {} is {}; supported: {}.", subject, t.name, value, finding.limit));
    result.findings.push_back(std::move(finding));
  }
}

}  // namespace evidence
}  // namespace octavo
