// SPDX-License-Identifier: Apache-2.0
// All settings of a run. The ledger keeps them, so that a resumed run needs nothing else.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "evolve/gate.h"
#include "evolve/guidance.h"

namespace octavo::evolve {

struct Settings {
  Task task;
  std::string config;                // where the search starts: a whole configuration
  std::vector<std::string> seeds;    // more kernels to start from: whole configurations
  std::string generator = "config";  // config, random, best_of_n, exhaustive, command, scripted
  std::string command;               // of the generator `command`
  double command_limit_s = 600;
  std::string script;  // of the generator `scripted`
  Information information = Information::full;
  std::vector<std::string> controls;  // generators that get the same number of candidates
  int generations = 10;
  int population = 8;  // candidates of a generation
  int elites = 3;
  int rounds = 20;       // of each measurement
  int again_blocks = 3;  // fresh processes before an admission
  double gate_limit_s = 120;
  std::uint64_t seed = 0;
  // Gates that this machine cannot run, without which a kernel may be admitted all the same.
  std::vector<std::string> may_be_missing;
};

// kMainArm, then the controls.
std::vector<std::string> arms_of(const Settings& settings);

nlohmann::json to_json(const Settings& settings);
Result<Settings> settings_from_json(const nlohmann::json& json);

}  // namespace octavo::evolve
