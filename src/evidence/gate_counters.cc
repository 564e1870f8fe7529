// The counters gate: what a profiler counted, from its file.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "attention/error.h"
#include "evidence/gate.h"

namespace octavo::evidence {

Result<GateResult> counters_gate(const GateOptions& options,
                                 const std::vector<Threshold>& thresholds) {
  GateResult result;
  result.name = "counters";
  if (options.counters.empty()) {
    result.reason = "no counters were given.";
    return result;
  }
  try {
    const nlohmann::json json = nlohmann::json::parse(options.counters);
    if (json.at("kind") != "counters")
      return invalid("counters", fmt::format("kind {}", json.at("kind").dump()),
                     "kind \"counters\"");
    for (const nlohmann::json& row : json.at("rows")) {
      const std::string kernel = row.at("kernel");
      const std::string subject = fmt::format("{} {}", row.at("name").get<std::string>(), kernel);
      const double gflop = row.value("gflop", 0.0);
      for (const auto& [metric, value] : row.at("metrics").items()) {
        if (value.is_null())
          result.left_out.push_back(fmt::format("{}: {} was not counted.", subject, metric));
        else
          hold(result, thresholds, metric, subject, kernel, gflop, value.get<double>());
      }
    }
  } catch (const nlohmann::json::exception& error) {
    return invalid("counters", error.what(), "JSON as docs/json.md has it");
  }
  const auto enforced = std::count_if(result.findings.begin(), result.findings.end(),
                                      [](const GateFinding& f) { return f.enforced; });
  if (enforced == 0) {
    result.reason = "no threshold is for what was counted.";
    return result;
  }
  result.reason = fmt::format("{} values held against their thresholds", enforced);
  result.state = result.failures.empty() ? GateState::passed : GateState::failed;
  return result;
}

}  // namespace octavo::evidence
