// SPDX-License-Identifier: Apache-2.0
#include "evolve/guidance.h"

#include <fmt/format.h>

#include <array>

#include "base/error.h"
#include "evolve/gates/policy.h"
#include "gpu/jit/kernel_source.h"

namespace octavo::evolve {
namespace {

constexpr std::array<std::string_view, 3> kInformation = {"free", "insight", "full"};

bool has_elites(const Guidance& g) { return g.information == Information::full; }
bool has_insights(const Guidance& g) { return g.information != Information::free; }

nlohmann::json shape_json(const BenchCase& shape) {
  return {{"name", shape.name},        {"batch", shape.batch},
          {"heads", shape.heads},      {"heads_kv", shape.heads_kv.value_or(shape.heads)},
          {"seqlen_q", shape.length},  {"seqlen_kv", shape.length_kv.value_or(shape.length)},
          {"head_dim", shape.head_dim}};
}

nlohmann::json task_json(const Guidance& g) {
  nlohmann::json shapes = nlohmann::json::array();
  for (const BenchCase& shape : g.task->shapes) shapes.push_back(shape_json(shape));
  return {
      {"objective",
       "the largest geometric mean, over the shapes, of the base's time over the candidate's"},
      {"kernel", g.task->kernel},
      {"dtype", name(g.task->dtype)},
      {"precision", name(g.task->attention.precision)},
      {"causal", name(g.task->attention.causal)},
      {"shapes", shapes},
      {"base", g.space->base()},
      {"current", {{"id", g.current.id}, {"config", g.current.config}, {"patch", g.current.patch}}},
      {"constraints",
       {"patches change only the listed sources",
        "the result is right for every shape, also those not listed",
        "the declared number formats are the ones used", "no register is spilled",
        "no clock is read, and nothing is kept from one launch to the next"}}};
}

nlohmann::json levers_json(const ConfigSpace& space) {
  nlohmann::json levers = nlohmann::json::array();
  for (const ConfigField& field : space.fields())
    levers.push_back({{"tag", field.name}, {"values", field.values}});
  return levers;
}

nlohmann::json elites_json(const std::vector<Elite>& elites) {
  nlohmann::json list = nlohmann::json::array();
  for (const Elite& elite : elites) {
    nlohmann::json shapes = nlohmann::json::array();
    for (const Speedup& each : elite.shapes) shapes.push_back(to_json(each));
    list.push_back({{"id", elite.candidate.id},
                    {"config", elite.candidate.config},
                    {"patch", elite.candidate.patch},
                    {"levers", to_json(elite.candidate.levers)},
                    {"speedup", to_json(elite.speedup)},
                    {"shapes", shapes}});
  }
  return list;
}

nlohmann::json insights_json(const std::vector<Insight>& insights) {
  nlohmann::json list = nlohmann::json::array();
  for (const Insight& insight : insights) {
    if (!insight.not_measured.empty()) continue;
    list.push_back({{"candidate", insight.candidate},
                    {"tag", insight.tag},
                    {"change", insight.change},
                    {"speedup", to_json(insight.speedup)}});
  }
  return list;
}

}  // namespace

std::string_view name(Information information) {
  return kInformation.at(static_cast<std::size_t>(information));
}

Result<Information> information_named(std::string_view text) {
  for (std::size_t i = 0; i < kInformation.size(); ++i)
    if (text == kInformation.at(i)) return static_cast<Information>(i);
  return invalid("information", fmt::format("'{}'", text), "free, insight, full");
}

nlohmann::json document(const Guidance& g, int generation, int count) {
  nlohmann::json sources = nlohmann::json::object();
  for (const auto& [name, text] : g.sources) sources[name] = text;
  nlohmann::json json = {{"protocol", "octavo-evolve/1"},
                         {"generation", generation},
                         {"count", count},
                         {"information", name(g.information)},
                         {"task", task_json(g)},
                         {"levers", levers_json(*g.space)},
                         {"sources", sources},
                         {"prompt", prompt(g, count)}};
  if (has_elites(g)) json["elites"] = elites_json(g.elites);
  if (has_insights(g)) json["insights"] = insights_json(g.insights);
  return json;
}

std::string prompt(const Guidance& g, int count) {
  std::string text = fmt::format(
      "Make the attention kernel {} faster on the shapes below, for {} inputs. Propose {} "
      "candidates: fields of its configuration, or unified diffs of its sources.\n\nShapes:\n",
      g.task->kernel, name(g.task->dtype), count);
  for (const BenchCase& s : g.task->shapes)
    text += fmt::format("- {}: batch {}, {} heads, {} queries, {} keys, head_dim {}\n", s.name,
                        s.batch, s.heads, s.length, s.length_kv.value_or(s.length), s.head_dim);
  text += fmt::format("\nThe current kernel is {}:\n{}\n{}", g.current.id,
                      g.space->brief(g.current.config), g.current.patch);
  if (has_elites(g) && !g.elites.empty()) {
    text += "\nThe best kernels so far, with their speed relative to the base:\n";
    for (const Elite& e : g.elites)
      text += fmt::format("- {}: {:.3f} ({:.3f} to {:.3f}): {}\n{}", e.candidate.id,
                          e.speedup.value, e.speedup.low, e.speedup.high,
                          g.space->brief(e.candidate.config), e.candidate.patch);
  }
  if (has_insights(g) && !g.insights.empty()) {
    text += "\nMeasured effects of single changes (speed with the change over speed without):\n";
    for (const Insight& i : g.insights)
      if (i.not_measured.empty())
        text += fmt::format("- {}: {:.3f} ({:.3f} to {:.3f})\n", i.change, i.speedup.value,
                            i.speedup.low, i.speedup.high);
  }
  text += "\nFields that may change, with their values:\n";
  for (const ConfigField& field : g.space->fields())
    text += fmt::format("- {}: {}\n", field.name, fmt::join(field.values, ", "));
  return text;
}

std::vector<std::pair<std::string, std::string>> changeable_sources(const std::string& kernel,
                                                                    const std::string& config) {
  std::vector<std::pair<std::string, std::string>> sources;
  const Result<KernelConfig> parsed = parse_config(kernel, config);
  if (!parsed.ok()) return sources;
  for (const std::string_view name : included_sources(source_of(*parsed).include)) {
    const EmbeddedSource& source = *find_embedded_source(name);
    const std::string text = source.text;
    // The policy judges a patch that adds a comment at the end of the file.
    Patched patched;
    patched.sources.push_back({source.name, text, text + "// \n"});
    if (!judge_patch(patched)) sources.emplace_back(source.name, text);
  }
  return sources;
}

}  // namespace octavo::evolve
