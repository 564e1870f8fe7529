// SPDX-License-Identifier: Apache-2.0
#include "evolve/summary.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "evidence/bench/stats.h"
#include "evolve/measure.h"
#include "evolve/selection.h"

namespace octavo {
namespace evolve {
namespace {

// Which gates a kernel passed. Who reads this wants to know what was not done.
std::string audit_of(const Record& record) {
  if (record.candidate.id == kBaseId) return "the base";
  std::string passed, missing;
  for (const GateRecord& gate : record.gates) {
    std::string& list = gate.verdict == Verdict::passed ? passed : missing;
    list += (list.empty() ? "" : ", ") + gate.gate;
  }
  std::string text = fmt::format("passed {}", passed);
  if (!missing.empty()) text += fmt::format("; not done: {}", missing);
  if (!record.again.empty())
    text += fmt::format("; confirmed in {} fresh processes", record.again.size());
  return text;
}

EvolveElite elite_of(const Settings& settings, const Record& record, const std::string& arm) {
  EvolveElite elite;
  elite.arm = arm;
  elite.id = record.candidate.id;
  elite.config = record.candidate.config;
  elite.patch = record.candidate.patch;
  for (const Lever& lever : record.candidate.levers)
    elite.levers.push_back(lever.config.empty() ? lever.tag : lever.config);
  elite.audit = audit_of(record);
  const Comparison comparison = compare(record.again);
  elite.speedup = comparison.speedup.value;
  elite.low = comparison.speedup.low;
  elite.high = comparison.speedup.high;
  for (std::size_t i = 0; i < comparison.shapes.size(); ++i) {
    elite.shape_speedups.push_back(comparison.shapes[i].value);
    std::vector<double> us;
    for (const Block& block : record.again)
      us.insert(us.end(), block[i].candidate_us.begin(), block[i].candidate_us.end());
    elite.shape_us.push_back(evidence::quantile(us, 0.5));
    elite.peak_fractions.push_back(tensor_floor_us(settings.task, settings.task.shapes.at(i)) /
                                   elite.shape_us.back());
  }
  return elite;
}

void count_rejections(const LedgerContents& contents, EvolveReport& report) {
  const auto row = [&](const std::string& gate) -> EvolveRejections& {
    for (EvolveRejections& each : report.rejections)
      if (each.gate == gate) return each;
    return report.rejections.emplace_back(EvolveRejections{gate});
  };
  for (const char* gate : {"generator", "policy", "compile", "emulator", "correctness", "sanitizer",
                           "performance", "counters"})
    (void)row(gate);
  for (const Record& record : contents.records) {
    if (record.verdict == Verdict::rejected) ++row(record.gate).rejected;
    if (record.verdict == Verdict::not_done) ++row(record.gate).not_done;
    if (!record.admission.empty() && !record.is_admitted()) ++row("admission").rejected;
  }
}

}  // namespace

std::vector<std::string> last_elites(const LedgerContents& contents, const std::string& arm) {
  std::vector<std::string> elites;
  for (const GenerationRecord& generation : contents.generations)
    if (generation.arm == arm || (generation.arm == kSeedArm && elites.empty()))
      elites = generation.elites;
  return elites;
}

Result<Run> read_run(const std::string& directory) {
  const Result<Ledger> ledger = Ledger::open(directory, true);
  if (!ledger.ok()) return ledger.status();
  Result<LedgerContents> contents = ledger->read();
  if (!contents.ok()) return contents.status();
  Result<Settings> settings = settings_from_json(contents->settings);
  if (!settings.ok()) return settings.status();
  return Run{*std::move(settings), *std::move(contents)};
}

EvolveReport summarise(const std::string& directory, const Run& run) {
  const auto& [settings, contents] = run;
  EvolveReport report;
  report.directory = directory;
  report.kernel = settings.task.kernel;
  report.base = settings.task.base_config;
  report.generator = settings.generator;
  report.information = name(settings.information);
  report.seed = settings.seed;
  report.seconds = contents.spent_s;
  report.cases = settings.task.shapes;
  report.candidates = static_cast<std::int64_t>(contents.records.size());
  for (const Record& record : contents.records) {
    report.judged += record.verdict ? 1 : 0;
    report.duplicates += record.duplicate_of.empty() ? 0 : 1;
  }
  int complete = 0;
  for (const GenerationRecord& generation : contents.generations)
    complete += generation.generation == settings.generations ? 1 : 0;
  report.finished = complete == static_cast<int>(1 + settings.controls.size());
  for (const std::string& arm : arms_of(settings))
    for (const std::string& id : last_elites(contents, arm))
      if (const Record* const record = contents.find(id); record != nullptr)
        report.elites.push_back(elite_of(settings, *record, arm));
  count_rejections(contents, report);
  for (const Insight& insight : contents.insights)
    report.effects.push_back({insight.candidate, insight.change, insight.speedup.value,
                              insight.speedup.low, insight.speedup.high, insight.not_measured});
  return report;
}

}  // namespace evolve

Result<EvolveReport> evolve_report(const std::string& directory) {
  return without_exceptions([&]() -> Result<EvolveReport> {
    const Result<evolve::Run> run = evolve::read_run(directory);
    if (!run.ok()) return run.status();
    return evolve::summarise(directory, *run);
  });
}

Result<EvolveReport> evolve_replay(const std::string& directory) {
  return without_exceptions([&]() -> Result<EvolveReport> {
    const Result<evolve::Run> run = evolve::read_run(directory);
    if (!run.ok()) return run.status();
    EvolveReport report = evolve::summarise(directory, *run);
    report.differences = evolve::replay_differences(run->settings, run->contents);
    return report;
  });
}

Result<std::string> evolve_html(const std::string& directory) {
  return without_exceptions([&]() -> Result<std::string> {
    const Result<evolve::Run> run = evolve::read_run(directory);
    if (!run.ok()) return run.status();
    return evolve::html_of(evolve::summarise(directory, *run), *run);
  });
}

std::string to_json(const EvolveReport& r) {
  using Json = nlohmann::ordered_json;
  Json cases = Json::array(), elites = Json::array(), rejections = Json::array(),
       effects = Json::array();
  for (const BenchCase& c : r.cases)
    cases.push_back({{"name", c.name},
                     {"batch", c.batch},
                     {"heads", c.heads},
                     {"length", c.length},
                     {"head_dim", c.head_dim}});
  for (const EvolveElite& e : r.elites)
    elites.push_back({{"arm", e.arm},
                      {"id", e.id},
                      {"config", e.config},
                      {"patch", e.patch},
                      {"levers", e.levers},
                      {"speedup", e.speedup},
                      {"low", e.low},
                      {"high", e.high},
                      {"case_speedups", e.shape_speedups},
                      {"case_us", e.shape_us},
                      {"peak_fractions", e.peak_fractions},
                      {"audit", e.audit}});
  for (const EvolveRejections& each : r.rejections)
    rejections.push_back(
        {{"gate", each.gate}, {"rejected", each.rejected}, {"not_done", each.not_done}});
  for (const EvolveEffect& e : r.effects) {
    Json one = {{"candidate", e.candidate}, {"change", e.change}};
    if (e.not_measured.empty()) {
      one["speedup"] = e.speedup;
      one["low"] = e.low;
      one["high"] = e.high;
    } else {
      one["not_measured"] = e.not_measured;
    }
    effects.push_back(std::move(one));
  }
  const Json json = {{"schema", kSchemaVersion},
                     {"kind", "evolve"},
                     {"version", version()},
                     {"directory", r.directory},
                     {"kernel", r.kernel},
                     {"base", r.base},
                     {"generator", r.generator},
                     {"information", r.information},
                     {"seed", r.seed},
                     {"finished", r.finished},
                     {"seconds", r.seconds},
                     {"cases", cases},
                     {"candidates", r.candidates},
                     {"judged", r.judged},
                     {"duplicates", r.duplicates},
                     {"elites", elites},
                     {"rejections", rejections},
                     {"effects", effects},
                     {"differences", r.differences}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace octavo
