// SPDX-License-Identifier: Apache-2.0
// The performance gate: compares this run with a recorded one, shape by shape.
//
// Every shape is timed twice: all shapes once, then all of them again. The difference between the
// two series of the same kernel (A/A) is the resolution: smaller differences to the record mean
// nothing.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/error.h"
#include "evidence/bench/stats.h"
#include "evidence/gates/gate.h"
#include "files/bounded_json.h"

namespace octavo::evidence {
namespace {

struct Baseline {
  BenchOptions options;  // how it was measured
  std::string machine;   // empty: not recorded
  struct Row {
    BenchCase shape;
    std::vector<double> samples_us;
  };
  std::vector<Row> rows;
};

Result<Baseline> read_baseline(const std::string& text) {
  Baseline baseline;
  try {
    if (nesting_of(text) > kReportNesting)
      return invalid("baseline", "JSON of many brackets", "reports of octavo --json");
    const nlohmann::json json = nlohmann::json::parse(text);
    if (json.at("kind") != "bench")
      return invalid("baseline", fmt::format("kind {}", json.at("kind").dump()), "kind \"bench\"");
    if (json.value("launch", "graph") != "graph" || json.value("l2", "warm") != "warm" ||
        json.value("buffers", 1) != 1)
      return invalid("baseline", "of another way of timing",
                     "replays of a graph with one set of buffers in a warm L2");
    if (json.contains("machine") && json["machine"].is_string()) baseline.machine = json["machine"];
    const auto dtype = parse_dtype(json.at("dtype").get<std::string>());
    if (!dtype.ok()) return dtype.status();
    const auto precision = parse_precision(json.at("attention").at("precision").get<std::string>());
    if (!precision.ok()) return precision.status();
    const auto causal = parse_causal(json.at("attention").at("causal").get<std::string>());
    if (!causal.ok()) return causal.status();
    baseline.options.dtype = *dtype;
    baseline.options.attention.precision = *precision;
    baseline.options.attention.causal = *causal;
    for (const nlohmann::json& row : json.at("rows")) {
      Baseline::Row read{
          {row.at("name"), row.at("batch"), row.at("heads"), row.at("length"), row.at("head_dim")},
          row.at("samples_us").get<std::vector<double>>()};
      const bool sound = !read.samples_us.empty() &&
                         std::all_of(read.samples_us.begin(), read.samples_us.end(),
                                     [](double us) { return std::isfinite(us) && us > 0; });
      if (!sound)
        return invalid("baseline", fmt::format("samples_us of {}", read.shape.name),
                       "one or more positive times");
      baseline.rows.push_back(std::move(read));
    }
  } catch (const nlohmann::json::exception& error) {
    return invalid("baseline", error.what(), "a report of octavo bench --json");
  }
  if (baseline.rows.empty()) return invalid("baseline", "one without rows", "one row or more");
  return baseline;
}

struct Limits {
  double slowdown = 0;        // a shape above it is slower
  double worst_slowdown = 0;  // no shape may be above it
  double slower_shapes = 0;
};

Result<Limits> limits_of(const std::vector<Threshold>& thresholds) {
  Limits limits;
  for (const auto& [name, value, least] :
       {std::tuple("slowdown", &Limits::slowdown, 1.0),
        std::tuple("worst_slowdown", &Limits::worst_slowdown, 1.0),
        std::tuple("slower_shapes", &Limits::slower_shapes, -1.0)}) {
    for (const Threshold& t : thresholds)
      if (t.gate == "performance" && t.name == name) limits.*value = t.at_most.value_or(least);
    if (!(limits.*value > least))
      return invalid("thresholds", fmt::format("no performance {}", name),
                     fmt::format("one with at_most above {}", least));
  }
  return limits;
}

void judge_timing(GateTiming& timing, const std::vector<double>& baseline_us, double limit) {
  std::vector<double> all = timing.samples_us;
  all.insert(all.end(), timing.again_us.begin(), timing.again_us.end());
  timing.median_us = quantile(all, 0.5);
  timing.baseline_us = quantile(baseline_us, 0.5);
  timing.ratio = timing.median_us / timing.baseline_us;
  const Interval interval = ratio_interval(all, baseline_us);
  timing.ratio_low = interval.low;
  timing.ratio_high = interval.high;
  const Interval same = ratio_interval(timing.samples_us, timing.again_us);
  timing.resolution = std::max(std::abs(same.low - 1), std::abs(same.high - 1));
  // Noise may hide a slower kernel, but a difference beyond the noise is not noise.
  const bool slower = timing.ratio > limit && timing.ratio_low > 1 + timing.resolution;
  timing.verdict = slower                          ? "slower"
                   : timing.resolution < limit - 1 ? "not slower"
                                                   : "not measured";
}

// Times all shapes, then all shapes again.
Status take_samples(const GateOptions& options, const Baseline& baseline,
                    const GateSubject& subject, std::vector<GateTiming>& timings) {
  BenchOptions bench = baseline.options;
  bench.device = options.device;
  bench.iters = options.iters;
  bench.seed = options.seed;
  bench.check_correctness = bench.three_loop = false;
  for (const Baseline::Row& row : baseline.rows) timings.push_back({.shape = row.shape});
  for (std::vector<double> GateTiming::*series : {&GateTiming::samples_us, &GateTiming::again_us})
    for (GateTiming& timing : timings) {
      Result<std::vector<double>> samples = subject.time(bench, timing.shape);
      if (!samples.ok()) return samples.status();
      timing.*series = std::move(samples).value();
    }
  return {};
}

// Why the baseline and this run cannot be compared; empty if they can.
std::string obstacle(const GateOptions& options, const Baseline& baseline,
                     const std::string& machine) {
  if (options.device.kind == Device::Kind::emulator)
    return "the emulator's time is not a kernel's.";
  if (baseline.machine.empty())
    return "the baseline does not name the machine that it was measured on.";
  if (baseline.machine != machine)
    return fmt::format("the baseline is of {}, and this is {}.", printable(baseline.machine),
                       machine);
  return "";
}

// A baseline is meant to be compared with. If that is impossible, the gate fails unless the caller
// has allowed it.
GateResult not_compared(GateResult result, const GateOptions& options, std::string why) {
  if (!options.baseline_optional) {
    result.state = GateState::failed;
    result.failures.push_back(why);
  }
  result.reason = std::move(why);
  return result;
}

void judge_timings(const Baseline& baseline, const Limits& limits, GateResult& result) {
  for (std::size_t i = 0; i < result.timings.size(); ++i) {
    GateTiming& timing = result.timings[i];
    judge_timing(timing, baseline.rows[i].samples_us, limits.slowdown);
    if (timing.verdict == "not measured")
      result.left_out.push_back(
          fmt::format("{}: two runs of the same kernel are up to {:.1f}% apart.", timing.shape.name,
                      100 * timing.resolution));
  }
}

std::string slower_sentence(const GateTiming& timing) {
  return fmt::format(
      "{}: {:.2f} us, {:.1f}% slower than the {:.2f} us on record (95%: {:.1f} to {:.1f}%).",
      timing.shape.name, timing.median_us, 100 * (timing.ratio - 1), timing.baseline_us,
      100 * (timing.ratio_low - 1), 100 * (timing.ratio_high - 1));
}

}  // namespace

Result<GateResult> performance_gate(const GateOptions& options,
                                    const std::vector<Threshold>& thresholds,
                                    const GateSubject& subject, const std::string& machine) {
  GateResult result;
  result.name = "performance";
  if (options.baseline.empty()) {
    result.reason = "no baseline was given.";
    return result;
  }
  const Result<Baseline> baseline = read_baseline(options.baseline);
  if (!baseline.ok()) return baseline.status();
  const Result<Limits> limits = limits_of(thresholds);
  if (!limits.ok()) return limits.status();
  if (std::string why = obstacle(options, *baseline, machine); !why.empty())
    return not_compared(std::move(result), options, std::move(why));
  OCTAVO_RETURN_IF_ERROR(take_samples(options, *baseline, subject, result.timings));
  judge_timings(*baseline, *limits, result);
  const auto shapes = static_cast<int>(result.timings.size());
  int slower = 0, measured = 0;
  double resolution = 0;
  for (const GateTiming& timing : result.timings) {
    if (timing.verdict == "not measured") continue;
    ++measured;
    resolution = std::max(resolution, timing.resolution);
    if (timing.verdict != "slower") continue;
    ++slower;
    check_threshold(result, thresholds, "worst_slowdown", timing.shape.name, "", 0, timing.ratio);
  }
  check_threshold(result, thresholds, "slower_shapes", name(options.device), "", 0, slower);
  // If a baseline has no more shapes than may be slower, none of its shapes may be slower.
  const bool few = shapes <= limits->slower_shapes;
  if (slower > 0 && (few || !result.failures.empty()))
    for (const GateTiming& timing : result.timings)
      if (timing.verdict == "slower") result.failures.push_back(slower_sentence(timing));
  if (result.failures.empty() && measured <= (few ? 0 : limits->slower_shapes))
    return not_compared(
        std::move(result), options,
        fmt::format("{} of {} shapes could be measured in this noise.", measured, shapes));
  result.reason = fmt::format("{} shapes against the baseline; A/A tells {:.1f}% apart", measured,
                              100 * resolution);
  result.state = result.failures.empty() ? GateState::passed : GateState::failed;
  return result;
}

}  // namespace octavo::evidence
