// SPDX-License-Identifier: Apache-2.0
// The solution guiding layer, by the names of EvoEngineer (arXiv 2510.03760): what a generator is
// told. I1 is the task, I2 the elites with their numbers, I3 the insights: measured effects of
// levers. Prompt construction renders them as text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "evolve/config_space.h"
#include "evolve/gate.h"
#include "evolve/statistics.h"

namespace octavo::evolve {

// Which parts a generator gets. Free: I1. Insight: I1 and I3. Full: I1, I2 and I3.
enum class Information : std::uint8_t { free, insight, full };
std::string_view name(Information information);
Result<Information> information_named(std::string_view text);

// I2: a kernel that passed every gate, and its numbers.
struct Elite {
  Candidate candidate;
  Speedup speedup;              // over the base, geometric mean
  std::vector<Speedup> shapes;  // in the order of the task
};

// I3: what a lever did to the time of an admitted kernel, measured by reverting it alone.
struct Insight {
  std::string candidate;  // the id of the kernel
  std::string tag;
  std::string change;        // "block_n: 64 -> 128", or the tag of a patch
  Speedup speedup;           // of the kernel over itself without the lever
  std::string not_measured;  // why speedup is not; empty if it is
};

struct Guidance {
  const Task* task = nullptr;
  const ConfigSpace* space = nullptr;
  Information information = Information::full;
  Candidate current;  // the best so far; the base at first
  std::vector<Elite> elites;
  std::vector<Insight> insights;
  // The device sources that a patch may change, name and text; empty: configurations alone.
  std::vector<std::pair<std::string, std::string>> sources;
};

// The document that a generator reads: "protocol", "task" (I1), "elites" (I2), "insights" (I3),
// "sources", "levers", "prompt". What the information does not include is not in it.
nlohmann::json document(const Guidance& guidance, int generation, int count);

// The same for a language model, as text.
std::string prompt(const Guidance& guidance, int count);

// The sources that a kernel family includes and that the policy lets a patch change.
std::vector<std::pair<std::string, std::string>> changeable_sources(const std::string& kernel,
                                                                    const std::string& config);

}  // namespace octavo::evolve
