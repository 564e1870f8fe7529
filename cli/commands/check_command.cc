// SPDX-License-Identifier: Apache-2.0
// octavo check: the case tables against the fp64 oracle.
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "commands/commands.h"
#include "exit.h"
#include "options.h"
#include "progress.h"
#include "report.h"

namespace octavo::cli {
namespace {

struct CheckFlags {
  DeviceFlags device;
  JsonFlag json;
  std::string suite = "all";
  std::string precision;
  std::uint64_t seed = 42;
  int repeat = 2;
  std::int64_t cases = 0;
  int streams = 0;
  bool overlap_launch = false;
};

int check_command(CheckFlags& flags) {
  CheckOptions options;
  options.device = flags.device.open();
  options.suite = flags.suite;
  if (!flags.precision.empty()) options.precision = require(parse_precision(flags.precision));
  options.seed = flags.seed;
  options.repeat = flags.repeat;
  options.cases = flags.cases;
  options.streams = flags.streams;
  options.overlap_launch = flags.overlap_launch;
  flags.json.open();
  const CheckReport result = [&] {
    std::optional<ProgressBar> bar;
    const auto progress_of = [&bar](const char* what) {
      return [&bar, what](std::int64_t done, std::int64_t total) {
        if (done == 1 || !bar) bar.emplace(what);
        bar->update(done, total);
      };
    };
    options.compile_progress = progress_of("compile");
    options.progress = progress_of("check");
    return require(check(options));
  }();
  report(flags.json, render(result), to_json(result));
  return result.passed() ? kExitOk : kExitFailed;
}

}  // namespace

void add_check_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("check", "Check results against fp64 attention");
  const auto flags = std::make_shared<CheckFlags>();
  flags->device.add(*command);
  command
      ->add_option(
          "--suite", flags->suite,
          "which cases: all, twelve, presets, decode, block_mask; on a GPU configs, emulated")
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--precision", flags->precision, "only this precision mode")
      ->type_name("MODE");
  add_seed(*command, flags->seed);
  command->add_option("--repeat", flags->repeat, "runs of each case, which must agree in every bit")
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--cases", flags->cases, "only about this many, spread over the suite; 0: all")
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--streams", flags->streams,
                   "number of threads, on a GPU each with its own stream; 0: one")
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--overlap-launch", flags->overlap_launch,
                    "launches may start before the preceding kernel ends");
  flags->json.add(*command);
  add_example(*command, "octavo check --suite twelve --precision fp8");
  command->callback([flags, &exit_code] { exit_code = check_command(*flags); });
}

}  // namespace octavo::cli
