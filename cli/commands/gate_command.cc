// SPDX-License-Identifier: Apache-2.0
// octavo gate: compile, correctness, performance, counters, in that order.
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "commands/commands.h"
#include "exit.h"
#include "octavo/gate.hpp"
#include "options.h"
#include "progress.h"
#include "report.h"
#include "text_file.h"

namespace octavo::cli {
namespace {

struct GateFlags {
  DeviceFlags device;
  JsonFlag json;
  std::string family, thresholds, baseline, counters;
  bool baseline_optional = false;
  std::uint64_t seed = 42;
  std::optional<std::uint64_t> draw_seed;
  int seeds = 3;
  std::optional<std::int64_t> cases;
  int kernels = 8;
  int iters = 400;
};

std::string text_of(const char* flag, const std::string& path) {
  return path.empty() ? "" : require(read_text_file(flag, path));
}

int gate_command(GateFlags& flags) {
  constexpr std::int64_t kEmulatorCases = 6;  // a case takes seconds there
  if (!flags.family.empty()) ::setenv("OCTAVO_KERNELS", flags.family.c_str(), 1);  // for plans
  GateOptions options;
  options.device = flags.device.open();
  options.kernel_family = flags.family;
  options.thresholds = text_of("--thresholds", flags.thresholds);
  options.baseline = text_of("--baseline", flags.baseline);
  options.baseline_optional = flags.baseline_optional;
  options.counters = text_of("--counters", flags.counters);
  options.seed = flags.seed;
  options.seeds = flags.seeds;
  options.draw_seed = flags.draw_seed;
  const bool emulated = options.device.kind == Device::Kind::emulator;
  options.cases = flags.cases.value_or(emulated ? kEmulatorCases : 0);
  options.kernels = flags.kernels;
  options.iters = flags.iters;
  flags.json.open();
  const GateReport result = [&] {
    ProgressBar bar("gate");
    options.progress = [&bar](std::int64_t done, std::int64_t total) { bar.update(done, total); };
    return require(gate(options));
  }();
  report(flags.json, render(result), to_json(result));
  return result.passed() ? kExitOk : kExitFailed;
}

}  // namespace

void add_gate_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("gate", "Compile, correctness, performance and counters, in that order");
  const auto flags = std::make_shared<GateFlags>();
  flags->device.add(*command);
  command
      ->add_option("--baseline", flags->baseline, "a report of octavo bench --json to compare with")
      ->type_name("FILE");
  command->add_flag("--baseline-optional", flags->baseline_optional,
                    "a baseline that cannot be compared is not measured, instead of a failure");
  command->add_option("--counters", flags->counters, "what a profiler counted (docs/json.md)")
      ->type_name("FILE");
  command->add_option("--thresholds", flags->thresholds, "instead of bench/gates.json")
      ->type_name("FILE");
  command->add_option("--kernel-family", flags->family, "only these kernels: sm80, sm90, decode")
      ->type_name("NAME");
  add_seed(*command, flags->seed);
  command->add_option("--seeds", flags->seeds, "of random problems")
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--draw-seed", flags->draw_seed,
                   "of the problems that every run draws anew; the report has the one drawn")
      ->type_name("N");
  command
      ->add_option("--cases", flags->cases,
                   "about this many for each part of the correctness gate; 0: all")
      ->type_name("N");
  command->add_option("--kernels", flags->kernels, "compiled here where none is built in; 0: all")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--iters", flags->iters, "timed runs of a series")
      ->type_name("N")
      ->capture_default_str();
  flags->json.add(*command);
  add_example(*command, "octavo gate --device cuda --baseline bench.json --json gate.json");
  command->callback([flags, &exit_code] { exit_code = gate_command(*flags); });
}

}  // namespace octavo::cli
