// SPDX-License-Identifier: Apache-2.0
// The report of the gates as JSON (docs/json.md).
#include <nlohmann/json.hpp>

#include "octavo/gate.hpp"

namespace octavo {
namespace {

using GateJson = nlohmann::ordered_json;

GateJson threshold_json(const Threshold& t) {
  GateJson json = {{"gate", t.gate}, {"name", t.name}};
  if (t.at_least) json["at_least"] = *t.at_least;
  if (t.at_most) json["at_most"] = *t.at_most;
  json["enforced"] = t.enforced;
  json["kernels"] = t.kernels;
  json["min_gflop"] = t.min_gflop;
  json["verdict"] = t.verdict;
  json["reason"] = t.reason;
  return json;
}

GateJson finding_json(const GateFinding& f) {
  return {{"subject", f.subject}, {"threshold", f.threshold}, {"value", f.value},
          {"limit", f.limit},     {"held", f.held},           {"enforced", f.enforced}};
}

GateJson timing_json(const GateTiming& t) {
  return {{"name", t.shape.name},         {"batch", t.shape.batch},
          {"heads", t.shape.heads},       {"length", t.shape.length},
          {"head_dim", t.shape.head_dim}, {"median_us", t.median_us},
          {"baseline_us", t.baseline_us}, {"ratio", t.ratio},
          {"ratio_low", t.ratio_low},     {"ratio_high", t.ratio_high},
          {"resolution", t.resolution},   {"verdict", t.verdict},
          {"samples_us", t.samples_us},   {"again_us", t.again_us}};
}

template <class Items, class Convert>
GateJson array_of(const Items& items, const Convert& convert) {
  GateJson array = GateJson::array();
  for (const auto& item : items) array.push_back(convert(item));
  return array;
}

GateJson gate_json(const GateResult& g) {
  GateJson json = {{"name", g.name},
                   {"state", name(g.state)},
                   {"reason", g.reason},
                   {"failures", g.failures},
                   {"left_out", g.left_out},
                   {"findings", array_of(g.findings, finding_json)},
                   {"rows", array_of(g.timings, timing_json)}};
  if (g.check) {
    json["check"] = GateJson::parse(to_json(*g.check));
    for (const char* key : {"schema", "kind", "version"}) json["check"].erase(key);
  }
  return json;
}

}  // namespace

std::string to_json(const GateReport& report) {
  const GateJson json = {{"schema", kSchemaVersion},
                         {"kind", "gate"},
                         {"version", version()},
                         {"device", report.device},
                         {"machine", report.machine},
                         {"seed", report.seed},
                         {"draw_seed", report.draw_seed},
                         {"passed", report.passed()},
                         {"gates", array_of(report.gates, gate_json)},
                         {"thresholds", array_of(report.thresholds, threshold_json)}};
  return json.dump(2, ' ', false, GateJson::error_handler_t::replace) + "\n";
}

}  // namespace octavo
