// SPDX-License-Identifier: Apache-2.0
// Which kernels are the elites after a generation: a pure function of what the ledger has, so that
// a selection can be replayed without a GPU.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "evolve/ledger.h"
#include "evolve/settings.h"

namespace octavo::evolve {

// The kernel that all others are compared with, an elite from the beginning.
inline constexpr const char* kBaseId = "base";

struct Ranked {
  std::string id;
  double speedup = 1;  // the one it was admitted with
};

// The speed-up with which a candidate was or would be admitted: of the samples before its
// admission, as those of the gate favour the lucky. The base has 1.
double admitted_speedup(const Record& record);

// Candidates that passed all gates and are not duplicates in their arm, fastest first.
std::vector<const Record*> in_order(const std::vector<const Record*>& generation);

// The elites after a generation. `consider` decides about the admission of a candidate that is fast
// enough for it, and returns its record; its samples must confirm that it is faster.
std::vector<Ranked> select(std::vector<Ranked> elites, const std::vector<const Record*>& generation,
                           int most, const std::function<const Record*(const Record&)>& consider);

// Decides all over again from the samples in the ledger, and lists each difference from what the
// ledger says in one sentence; empty: there is none.
std::vector<std::string> replay_differences(const Settings& settings,
                                            const LedgerContents& contents);

}  // namespace octavo::evolve
