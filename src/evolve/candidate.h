// SPDX-License-Identifier: Apache-2.0
// A candidate kernel of `octavo evolve`: a configuration, or a patch to the device sources.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo::evolve {

// One change of a candidate relative to its first parent, which can be undone by itself. On
// admission each lever is reverted in turn, and the difference in time is its measured effect.
struct Lever {
  std::string tag;     // what is changed: "block_n", "stages", or the author's word for a patch
  std::string config;  // fields of the configuration, "block_n=64,stages=4"; empty: none
  std::string patch;   // a unified diff over the embedded device sources; empty: none
  bool operator==(const Lever&) const = default;
};

struct Candidate {
  std::string id;      // "c17"; given by the engine, unique in a run
  std::string kernel;  // the family: "sm90_forward", "sm80_forward"
  // The gates judge these two: the first parent's configuration and patches with the levers
  // applied. The configuration is text that the family's parser accepts; patches follow one after
  // the other.
  std::string config;
  std::string patch;

  std::vector<Lever> levers;
  std::vector<std::string> parents;  // ids; none: a seed
  int generation = 0;
  std::string author;     // the generator: "config", "random", "command", "seed"
  std::string rationale;  // the author's reason, in words; never taken for a measured effect
  bool operator==(const Candidate&) const = default;
};

// The digest of kernel, config and patch: gates cannot tell candidates with equal digests apart.
std::string content_digest(const Candidate& candidate);

nlohmann::json to_json(const std::vector<Lever>& levers);
// Reads the levers of a generator's JSON. An error names what is wrong with it.
Result<std::vector<Lever>> levers_from_json(const nlohmann::json& json);

}  // namespace octavo::evolve
