// SPDX-License-Identifier: Apache-2.0
#include "evolve/selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "evolve/measure.h"

namespace octavo::evolve {
namespace {

double first_speedup(const Record& record) { return compare(record.first).speedup.value; }

// Compares the verdict of the performance gate with what its samples say.
void check_verdict(const Settings& settings, const Record& record,
                   std::vector<std::string>& differences) {
  if (record.first.empty() || !record.verdict || !record.duplicate_of.empty()) return;
  const std::string found = objection(compare(record.first), settings.task);
  const bool passed = record.gate != "performance";  // what decided was another gate, or none
  if (found.empty() != passed && !record.reason.starts_with("Impossible"))
    differences.push_back(fmt::format("{}: the ledger says '{}', its samples: {}",
                                      record.candidate.id, record.reason,
                                      found.empty() ? "faster." : found));
}

}  // namespace

double admitted_speedup(const Record& record) {
  return record.candidate.id == kBaseId ? 1 : compare(record.again).speedup.value;
}

std::vector<const Record*> in_order(const std::vector<const Record*>& generation) {
  std::vector<const Record*> passed;
  for (const Record* record : generation)
    if (record->verdict == Verdict::passed && !record->first.empty()) passed.push_back(record);
  std::stable_sort(passed.begin(), passed.end(), [](const Record* a, const Record* b) {
    return first_speedup(*a) > first_speedup(*b);
  });
  return passed;
}

std::vector<Ranked> select(std::vector<Ranked> elites, const std::vector<const Record*>& generation,
                           int most, const std::function<const Record*(const Record&)>& consider) {
  const auto is_elite = [&](const std::string& id) {
    return std::any_of(elites.begin(), elites.end(), [&](const Ranked& e) { return e.id == id; });
  };
  for (const Record* record : in_order(generation)) {
    const bool full = static_cast<int>(elites.size()) >= most;
    if (full && first_speedup(*record) <= elites.back().speedup) break;
    if (!record->duplicate_of.empty() && is_elite(record->duplicate_of)) continue;
    const Record* const considered = consider(*record);
    if (considered == nullptr || !considered->is_admitted()) continue;
    const Ranked ranked{considered->candidate.id, admitted_speedup(*considered)};
    const auto place = std::find_if(elites.begin(), elites.end(), [&](const Ranked& other) {
      return other.speedup < ranked.speedup;
    });
    elites.insert(place, ranked);
    if (static_cast<int>(elites.size()) > most) elites.pop_back();
  }
  return elites;
}

std::vector<std::string> replay_differences(const Settings& settings,
                                            const LedgerContents& contents) {
  std::vector<std::string> differences;
  for (const Record& record : contents.records) check_verdict(settings, record, differences);
  std::map<std::string, std::vector<Ranked>> elites;  // by arm
  for (const GenerationRecord& generation : contents.generations) {
    std::vector<const Record*> records;
    for (const Record& record : contents.records)
      if (record.arm == generation.arm && record.candidate.generation == generation.generation)
        records.push_back(&record);
    if (!elites.contains(generation.arm))
      elites[generation.arm] =
          elites.contains(kSeedArm) ? elites[kSeedArm] : std::vector<Ranked>{{kBaseId, 1}};
    elites[generation.arm] =
        select(elites[generation.arm], records, settings.elites, [&](const Record& record) {
          const bool confirmed =
              !record.again.empty() && objection(compare(record.again), settings.task).empty();
          if (record.is_admitted() && !confirmed)
            differences.push_back(fmt::format("{}: admitted, but its samples do not confirm it",
                                              record.candidate.id));
          return &record;
        });
    std::vector<std::string> ids;
    for (const Ranked& elite : elites[generation.arm]) ids.push_back(elite.id);
    if (ids != generation.elites)
      differences.push_back(fmt::format("{} generation {}: the ledger's elites are {}, replayed {}",
                                        generation.arm, generation.generation,
                                        fmt::join(generation.elites, " "), fmt::join(ids, " ")));
  }
  return differences;
}

}  // namespace octavo::evolve
