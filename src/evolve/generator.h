// SPDX-License-Identifier: Apache-2.0
// Generators propose candidates.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "evolve/guidance.h"

namespace octavo::evolve {

// A candidate as its author writes it: levers on top of a known kernel.
struct Proposal {
  std::string parent;        // the id of the kernel that the levers change
  std::string other_parent;  // of a crossover
  std::vector<Lever> levers;
  std::string rationale;
  // If not empty, the author's text could not be read, and the candidate is rejected with this
  // reason.
  std::string refusal;
};

struct Request {
  const Guidance& guidance;
  int generation = 0;
  int count = 0;           // how many candidates the budget allows
  std::uint64_t seed = 0;  // of all random choices
  // Whether the search has already seen a whole configuration (of a candidate without a patch).
  std::function<bool(const std::string&)> is_known;
};

class Generator {
 public:
  Generator() = default;
  virtual ~Generator() = default;
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;
  virtual std::string_view name() const = 0;
  // At most `count` proposals. Fewer: there is nothing else to propose.
  virtual std::vector<Proposal> propose(const Request& request) = 0;
};

// Mutation and crossover of the elites that the guidance has; with insights, levers with larger
// measured effects are moved more often.
std::unique_ptr<Generator> config_generator();
// Controls. Random search: feasible configurations, each value drawn alike. Best of N: mutations of
// the base, whatever was measured.
std::unique_ptr<Generator> random_generator();
std::unique_ptr<Generator> best_of_n_generator();
// Every feasible configuration, in order.
std::unique_ptr<Generator> exhaustive_generator();

// Any program: reads one JSON document on stdin and writes one on stdout (docs/evolve.md).
struct CommandOptions {
  std::string command;  // run by /bin/sh
  double time_limit_s = 600;
  std::size_t most_bytes = std::size_t{16} << 20;  // of its output
};
std::unique_ptr<Generator> command_generator(const CommandOptions& options);

// Plays a script, for tests and demonstrations: a JSON array with an array of candidates for each
// generation, in the form that a command answers.
Result<std::unique_ptr<Generator>> scripted_generator(std::string_view script);

// The proposals of an answer: {"candidates": [{"parent", "config", "patch", "levers",
// "rationale"}]}. Whatever is wrong becomes a refusal.
std::vector<Proposal> proposals_of(std::string_view answer, std::size_t most);

}  // namespace octavo::evolve
