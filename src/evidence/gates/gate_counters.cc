// SPDX-License-Identifier: Apache-2.0
// The counters gate: compares a profiler's counts, from a file or a new run, with the thresholds.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "evidence/gates/gate.h"
#include "files/bounded_json.h"

namespace octavo::evidence {
namespace {

bool has_threshold(const std::vector<Threshold>& thresholds, std::string_view metric) {
  return std::any_of(thresholds.begin(), thresholds.end(),
                     [&](const Threshold& t) { return t.gate == "counters" && t.name == metric; });
}

}  // namespace

Result<GateResult> counters_gate(const GateOptions& options,
                                 const std::vector<Threshold>& thresholds,
                                 const GateSubject& subject) {
  GateResult result;
  result.name = "counters";
  std::string text = options.counters;
  if (text.empty()) {
    Result<std::string> counted = subject.count ? subject.count() : Result<std::string>("");
    if (!counted.ok()) {
      result.reason = counted.status().what();
      return result;
    }
    text = std::move(counted).value();
  }
  if (text.empty()) {
    result.reason = "no counters were given.";
    return result;
  }
  try {
    if (nesting_of(text) > kReportNesting)
      return invalid("counters", "JSON of many brackets", "reports of octavo --json");
    const nlohmann::json json = nlohmann::json::parse(text);
    if (json.at("kind") != "counters")
      return invalid("counters", fmt::format("kind {}", json.at("kind").dump()),
                     "kind \"counters\"");
    if (const std::string why = json.value("not_measured", ""); !why.empty()) {
      result.reason = why;
      return result;
    }
    for (const nlohmann::json& row : json.at("rows")) {
      const std::string kernel = row.at("kernel");
      const std::string what = fmt::format("{} {}", row.at("name").get<std::string>(), kernel);
      const double gflop = row.value("gflop", 0.0);
      for (const auto& [metric, value] : row.at("metrics").items()) {
        if (value.is_null() && has_threshold(thresholds, metric))
          result.left_out.push_back(fmt::format("{}: {} was not counted.", what, metric));
        else if (!value.is_null())
          check_threshold(result, thresholds, metric, what, kernel, gflop, value.get<double>());
      }
    }
  } catch (const nlohmann::json::exception& error) {
    return invalid("counters", error.what(), "JSON as docs/json.md has it");
  }
  const auto enforced = std::count_if(result.findings.begin(), result.findings.end(),
                                      [](const GateFinding& f) { return f.enforced; });
  if (enforced == 0) {
    result.reason = "no threshold applies to the values that were counted.";
    return result;
  }
  result.reason = fmt::format("{} values compared with their thresholds", enforced);
  result.state = result.failures.empty() ? GateState::passed : GateState::failed;
  return result;
}

}  // namespace octavo::evidence
