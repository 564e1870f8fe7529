// SPDX-License-Identifier: Apache-2.0
// octavo emulator: runs and tests the GPU kernels on the CPU.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>
#include <span>

#include "commands/commands.h"
#include "error.h"
#include "exit.h"
#include "json_text.h"
#include "octavo/emulator.hpp"
#include "options.h"
#include "progress.h"
#include "table.h"
#include "text_file.h"

namespace octavo::cli {
namespace {

using enum Table::Align;

void require_emulator() {
  if (!has_emulator())
    throw Exit(kExitUsage, "this build has no emulator: Boost.Context was missing.");
}

int list_emulated_kernels(JsonFlag& json_flag) {
  require_emulator();
  json_flag.open();
  Json json = envelope("emulator_kernels");
  json["kernels"] = Json::array();
  Table table({{"number"}, {"kernel", left}, {"config", left}});
  int number = 0;
  for (const EmulatedKernel& kernel : emulated_kernels()) {
    table.add_row({fmt::format("{}", number++), kernel.kernel, kernel.brief});
    json["kernels"].push_back({{"kernel", kernel.kernel}, {"config", kernel.config}});
  }
  report(json_flag, table.text(), json_text(json));
  return kExitOk;
}

struct SelftestFlags {
  JsonFlag json;
  int schedules = 3;
  bool verbose = false;
};

int selftest_command(SelftestFlags& flags) {
  require_emulator();
  flags.json.open();
  const std::vector<SelftestResult> results = emulator_selftest(flags.schedules);
  Table table({{"hazard", left}, {"what is wrong", left}, {"caught", left}, {"twin", left}});
  Json json = envelope("emulator_selftest");
  json["tests"] = Json::array();
  std::string reports;
  std::size_t failed = 0;
  for (const SelftestResult& r : results) {
    table.add_row({r.hazard, r.what, r.caught ? "yes" : "NO", r.clean ? "clean" : "NOT CLEAN"});
    json["tests"].push_back({{"hazard", r.hazard},
                             {"what", r.what},
                             {"caught", r.caught},
                             {"clean", r.clean},
                             {"report", r.report}});
    failed += r.passed() ? 0 : 1;
    if (flags.verbose || !r.passed()) reports += fmt::format("\n{}\n{}", r.what, r.report);
  }
  const std::string summary =
      fmt::format("\n{} faulty kernels and their twins, {} failed\n", results.size(), failed);
  report(flags.json, table.text() + reports + summary, json_text(json));
  return failed == 0 ? kExitOk : kExitFailed;
}

struct ConformanceFlags {
  JsonFlag json;
  std::string golden = "tests/emulator/conformance.golden";
};

int conformance_command(ConformanceFlags& flags) {
  require_emulator();
  flags.json.open();
  const ConformanceReport result =
      require(emulator_conformance(require(read_text_file("--golden", flags.golden))));
  Table table({{"instruction", left}, {"words"}, {"wrong"}, {"", left}});
  Json json = envelope("emulator_conformance");
  json["device"] = result.device;
  json["instructions"] = Json::array();
  std::int64_t words = 0, wrong = 0, missing = 0;
  for (const ConformanceRow& row : result.rows) {
    const std::string note = row.recorded ? row.difference : "not recorded";
    table.add_row({row.instruction, fmt::format("{}", row.words), fmt::format("{}", row.wrong),
                   note.substr(0, note.find('\n'))});
    json["instructions"].push_back({{"instruction", row.instruction},
                                    {"words", row.words},
                                    {"wrong", row.wrong},
                                    {"recorded", row.recorded},
                                    {"difference", row.difference}});
    words += row.words;
    wrong += row.wrong;
    missing += row.recorded ? 0 : 1;
  }
  const std::string summary = fmt::format(
      "\n{} sets recorded on {}: {} words, {} wrong; {} sets not recorded\n",
      result.rows.size() - static_cast<std::size_t>(missing), result.device, words, wrong, missing);
  report(flags.json, table.text() + summary, json_text(json));
  return result.passed() ? kExitOk : kExitFailed;
}

struct KernelFlags {
  JsonFlag json;
  std::string kernel = "all";
};

EmulatorProgress progress_bar(std::optional<ProgressBar>& bar) {
  bar.emplace("kernels");
  return [&bar](std::int64_t done, std::int64_t total) { bar->update(done, total); };
}

std::string mutant_text(const MutantReport& r, Json& json) {
  Table table(
      {{"switched off", left}, {"caught by", left}, {"in, or why it changes nothing", left}});
  Json mutants = Json::array();
  std::size_t survivors = 0;
  for (const Mutant& m : r.mutants) {
    const bool survived = m.caught_by.empty();
    survivors += survived ? 1 : 0;
    table.add_row({m.call, survived ? (m.accounted_for() ? "-" : "SURVIVES") : m.caught_by,
                   survived ? m.why : m.in_case});
    mutants.push_back(
        {{"call", m.call}, {"caught_by", m.caught_by}, {"case", m.in_case}, {"equivalent", m.why}});
  }
  json["kernels"].push_back({{"kernel", r.kernel},
                             {"config", r.brief},
                             {"cases", r.cases},
                             {"mutants", mutants},
                             {"failure", r.failure}});
  return fmt::format("{} {}\n{}{}{} mutants, {} caught, {} change nothing\n\n", r.kernel, r.brief,
                     table.text(), r.failure, r.mutants.size(), r.mutants.size() - survivors,
                     survivors);
}

int mutants_command(KernelFlags& flags) {
  require_emulator();
  flags.json.open();
  std::vector<MutantReport> reports;
  {
    std::optional<ProgressBar> bar;
    reports = require(emulator_mutants(flags.kernel, progress_bar(bar)));
  }
  Json json = envelope("emulator_mutants");
  json["kernels"] = Json::array();
  std::string text;
  bool passed = true;
  for (const MutantReport& r : reports) {
    text += mutant_text(r, json);
    passed = passed && r.passed();
  }
  report(flags.json, text, json_text(json));
  return passed ? kExitOk : kExitFailed;
}

std::string measure_text(const MeasureReport& r, Json& json) {
  Table table({{"line", left}, {"requests"}, {"needed"}, {"taken"}, {"unit", left}});
  Json lines = Json::array(), counts;
  for (const MeasuredLine& line : r.lines) {
    table.add_row({line.place, fmt::format("{}", line.requests), fmt::format("{}", line.needed),
                   fmt::format("{}", line.taken), line.shared ? "wavefronts" : "sectors"});
    lines.push_back({{"line", line.place},
                     {"memory", line.shared ? "shared" : "global"},
                     {"requests", line.requests},
                     {"needed", line.needed},
                     {"taken", line.taken}});
  }
  std::string text = fmt::format("{} {}\n{}\n{}", r.kernel, r.brief, r.case_name, table.text());
  for (const MeasuredCount& count : r.counts) {
    text += fmt::format("{} {}\n", count.instruction, count.times);
    counts[count.instruction] = count.times;
  }
  json["kernels"].push_back({{"kernel", r.kernel},
                             {"config", r.brief},
                             {"case", r.case_name},
                             {"lines", lines},
                             {"instructions", counts},
                             {"bank_conflicts", r.bank_conflicts},
                             {"failure", r.failure}});
  return text + fmt::format("bank conflicts {}\n{}\n", r.bank_conflicts, r.failure);
}

int measure_command(KernelFlags& flags) {
  require_emulator();
  flags.json.open();
  std::vector<MeasureReport> reports;
  {
    std::optional<ProgressBar> bar;
    reports = require(emulator_measure(flags.kernel, progress_bar(bar)));
  }
  Json json = envelope("emulator_measure");
  json["kernels"] = Json::array();
  std::string text;
  bool clean = true;
  for (const MeasureReport& r : reports) {
    text += measure_text(r, json);
    clean = clean && r.failure.empty();
  }
  report(flags.json, text, json_text(json));
  return clean ? kExitOk : kExitFailed;
}

void add_kernels(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("kernels", "List the kernels that the emulator can run");
  const auto json_flag = std::make_shared<JsonFlag>();
  json_flag->add(*command);
  command->callback([json_flag, &exit_code] { exit_code = list_emulated_kernels(*json_flag); });
}

void add_selftest(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "selftest", "For each kind of hazard, faulty kernels that must be caught and correct twins");
  const auto flags = std::make_shared<SelftestFlags>();
  command->add_option("--schedules", flags->schedules, "seeds that each twin is run under")
      ->type_name("N")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  command->add_flag("--verbose", flags->verbose, "with the report on each faulty kernel");
  flags->json.add(*command);
  command->callback([flags, &exit_code] { exit_code = selftest_command(*flags); });
}

void add_conformance(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "conformance", "Compare each instruction with a GPU's results for the same inputs");
  const auto flags = std::make_shared<ConformanceFlags>();
  command->add_option("--golden", flags->golden, "the file that was recorded on the GPU")
      ->type_name("FILE")
      ->capture_default_str();
  flags->json.add(*command);
  command->callback([flags, &exit_code] { exit_code = conformance_command(*flags); });
}

void add_of_kernel(CLI::App& app, int& exit_code, const char* name, const char* what,
                   int (*run)(KernelFlags&)) {
  CLI::App* command = app.add_subcommand(name, what);
  const auto flags = std::make_shared<KernelFlags>();
  command
      ->add_option("--kernel", flags->kernel,
                   "all, a family, or a number or config that `octavo emulator kernels` lists")
      ->type_name("KERNEL")
      ->capture_default_str();
  flags->json.add(*command);
  command->callback([flags, run, &exit_code] { exit_code = run(*flags); });
}

}  // namespace

void add_emulator_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("emulator", "Run the GPU kernels on the CPU and check for hazards");
  command->require_subcommand(1);
  add_kernels(*command, exit_code);
  add_selftest(*command, exit_code);
  add_conformance(*command, exit_code);
  add_of_kernel(*command, exit_code, "mutants",
                "Disable each wait, barrier and mask term of a kernel, one by one, and test it",
                mutants_command);
  add_of_kernel(*command, exit_code, "measure",
                "Count a kernel's bank conflicts, sectors, tensor and exponential instructions",
                measure_command);
  add_example(*command, "octavo emulator selftest");
}

}  // namespace octavo::cli
