// SPDX-License-Identifier: Apache-2.0
// What the report, the page and the export say about a run, from its ledger.
#pragma once

#include <string>

#include "evolve/ledger.h"
#include "evolve/settings.h"
#include "octavo/evolve.hpp"

namespace octavo::evolve {

struct Run {
  Settings settings;
  LedgerContents contents;
};
Result<Run> read_run(const std::string& directory);

// The ids of an arm's elites after its last complete generation, best first; the base at first.
std::vector<std::string> last_elites(const LedgerContents& contents, const std::string& arm);

EvolveReport summarise(const std::string& directory, const Run& run);

// One page with everything about a run.
std::string html_of(const EvolveReport& report, const Run& run);

}  // namespace octavo::evolve
