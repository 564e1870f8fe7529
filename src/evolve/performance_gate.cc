// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "evidence/bench/stats.h"
#include "evolve/measure.h"

namespace octavo::evolve {
namespace {

std::string interval_text(const Speedup& s) {
  return fmt::format("{} ({} to {})", percent_text(s.value), percent_text(s.low),
                     percent_text(s.high));
}

}  // namespace

std::string objection(const Comparison& comparison, const Task& task) {
  if (comparison.vetoed()) {
    std::string shapes;
    for (const int shape : comparison.veto)
      shapes += fmt::format("{}{}", shapes.empty() ? "" : ", ",
                            task.shapes.at(static_cast<std::size_t>(shape)).name);
    return fmt::format("Vetoed: more than 10% slower on {} shapes with certainty ({}).",
                       comparison.veto.size(), shapes);
  }
  switch (comparison.effect) {
    case Effect::faster:
      return "";
    case Effect::slower:
      return fmt::format("Slower: {}.", interval_text(comparison.speedup));
    case Effect::same:
      return fmt::format("As fast as the base: {}.", interval_text(comparison.speedup));
    case Effect::undecided:
      break;
  }
  return comparison.shapes.empty()
             ? "The times could not be compared: some are missing or not positive."
             : fmt::format("Not shown to be faster: {}.", interval_text(comparison.speedup));
}

std::string impossible_time(const Task& task, const std::vector<Block>& blocks,
                            Measurer& measurer) {
  for (const Block& block : blocks)
    for (std::size_t i = 0; i < block.size() && i < task.shapes.size(); ++i) {
      const double floor_us = measurer.floor_us(task, task.shapes[i]);
      if (block[i].candidate_us.empty() || floor_us <= 0) continue;
      const double us = evidence::quantile(block[i].candidate_us, 0.5);
      if (us < floor_us)
        return fmt::format("Impossible: {:.3g} us for {}, where the chip's peak allows {:.3g} us.",
                           us, task.shapes[i].name, floor_us);
    }
  return "";
}

Candidate base_of(const Task& task) {
  Candidate base;
  base.kernel = task.kernel;
  base.config = task.base_config;
  return base;
}

GateOutcome PerformanceGate::judge(const Candidate& candidate, const Context& context) {
  if (context.task.device.kind != Device::Kind::cuda)
    return {Verdict::not_done, "Not done: there is no GPU.", {}};
  const Candidate base = base_of(context.task);
  const Result<Block> block = measurer_.measure(
      context.task,
      {&base, &candidate, context.seed, rounds_, context.directory, context.time_limit_s});
  if (block.status().code() == ErrorCode::unsupported)
    return {Verdict::not_done, "Not done: " + block.status().message(), {}};
  if (!block.ok()) return {Verdict::rejected, block.status().message(), {}};
  const std::vector<Block> blocks = {*block};
  const Comparison comparison = compare(blocks);
  GateOutcome outcome;
  outcome.figures = to_json(comparison);
  outcome.figures["samples"] = to_json(blocks);
  outcome.reason = impossible_time(context.task, blocks, measurer_);
  if (outcome.reason.empty()) outcome.reason = objection(comparison, context.task);
  outcome.verdict = outcome.reason.empty() ? Verdict::passed : Verdict::rejected;
  if (outcome.reason.empty())
    outcome.reason = fmt::format("Faster: {}.", interval_text(comparison.speedup));
  return outcome;
}

nlohmann::json to_json(const std::vector<Block>& blocks) {
  nlohmann::json list = nlohmann::json::array();
  for (const Block& block : blocks) {
    nlohmann::json shapes = nlohmann::json::array();
    for (const Rounds& rounds : block)
      shapes.push_back({{"base_us", rounds.base_us},
                        {"candidate_us", rounds.candidate_us},
                        {"clock_mhz", rounds.clock_mhz}});
    list.push_back(std::move(shapes));
  }
  return list;
}

std::vector<Block> blocks_from_json(const nlohmann::json& json) {
  std::vector<Block> blocks;
  try {
    for (const nlohmann::json& shapes : json) {
      Block block;
      for (const nlohmann::json& rounds : shapes)
        block.push_back({rounds.at("base_us").get<std::vector<double>>(),
                         rounds.at("candidate_us").get<std::vector<double>>(),
                         rounds.value("clock_mhz", 0.0)});
      blocks.push_back(std::move(block));
    }
  } catch (const nlohmann::json::exception&) {
    return {};  // compare() says that it cannot be decided
  }
  return blocks;
}

nlohmann::json to_json(const Comparison& comparison) {
  nlohmann::json shapes = nlohmann::json::array();
  for (const Speedup& each : comparison.shapes) shapes.push_back(to_json(each));
  return {{"effect", name(comparison.effect)},
          {"speedup", to_json(comparison.speedup)},
          {"shapes", shapes},
          {"veto", comparison.veto},
          {"resolution", comparison.resolution}};
}

}  // namespace octavo::evolve
