// SPDX-License-Identifier: Apache-2.0
// Implements emulator_selftest() and emulator_conformance() of octavo/emulator.hpp.
#include <algorithm>

#include "base/error.h"
#include "emulator/selftest/conformance.h"
#include "emulator/selftest/selftest.h"
#include "octavo/emulator.hpp"

namespace octavo {

std::vector<SelftestResult> emulator_selftest(int schedules) {
  std::vector<SelftestResult> results;
  for (const emulator::SelftestCase& test : emulator::selftest_cases()) {
    SelftestResult result;
    result.hazard = name(test.hazard);
    result.what = test.what;
    const emulator::Report faulty = run_selftest(test, false, {});
    const auto& findings = faulty.findings();
    result.caught = std::any_of(findings.begin(), findings.end(),
                                [&](const auto& f) { return f.hazard == test.hazard; });
    result.report = faulty.text();
    emulator::Report twin = run_selftest(test, true, {});
    for (int seed = 0; seed < schedules && twin.clean(); ++seed)
      twin = run_selftest(test, true, static_cast<std::uint64_t>(seed));
    result.clean = twin.clean();
    if (!result.clean) result.report = twin.text();
    results.push_back(std::move(result));
  }
  return results;
}

Result<ConformanceReport> emulator_conformance(const std::string& golden) {
  return without_exceptions([&]() -> Result<ConformanceReport> {
    const std::vector<emulator::GoldenSet> sets = emulator::golden_from_bytes(golden);
    if (sets.empty())
      return invalid("golden", fmt::format("{} bytes of something else", golden.size()),
                     "what tools/record_conformance.cc writes");
    ConformanceReport report;
    report.device = emulator::golden_device(golden);
    for (const emulator::ConformanceSet& set : emulator::conformance_sets()) {
      const auto found =
          std::find_if(sets.begin(), sets.end(), [&](const auto& g) { return g.name == set.name; });
      std::optional<emulator::GoldenSet> recorded;
      if (found != sets.end()) recorded = *found;
      emulator::ConformanceResult result = conform(set, recorded);
      report.rows.push_back(
          {set.name, result.words, result.wrong, recorded.has_value(), std::move(result.first)});
    }
    return report;
  });
}

}  // namespace octavo
