// SPDX-License-Identifier: Apache-2.0
// octavo ladder: checks and times the teaching kernels.
#include <CLI/CLI.hpp>
#include <memory>

#include "commands/commands.h"
#include "exit.h"
#include "octavo/ladder.hpp"
#include "options.h"
#include "progress.h"
#include "report.h"

namespace octavo::cli {
namespace {

struct LadderFlags {
  DeviceFlags device;
  ShapeFlags shape;
  JsonFlag json;
  bool causal = false;
  std::uint64_t seed = 42;
  int turns = 5;
};

int ladder_command(LadderFlags& flags) {
  LadderOptions options;
  options.device = flags.device.open();
  options.cases = flags.shape.cases();
  options.causal = flags.causal;
  options.seed = flags.seed;
  options.turns = flags.turns;
  flags.json.open();
  const LadderReport result = [&] {
    ProgressBar bar("ladder");
    options.progress = [&bar](std::int64_t done, std::int64_t total) { bar.update(done, total); };
    return require(run_ladder(options));
  }();
  report(flags.json, render(result), to_json(result));
  return result.passed() ? kExitOk : kExitFailed;
}

}  // namespace

void add_ladder_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("ladder", "Check and time the five teaching kernels beside Octavo's own");
  const auto flags = std::make_shared<LadderFlags>();
  flags->device.add(*command);
  flags->shape.add(*command, ShapeFlags::Count::many);
  command->add_flag("--causal", flags->causal, "mask the future, aligned top-left");
  add_seed(*command, flags->seed);
  command->add_option("--turns", flags->turns, "how often all kernels are timed in turn")
      ->type_name("N")
      ->capture_default_str();
  flags->json.add(*command);
  add_example(*command, "octavo ladder --preset mission --json ladder.json");
  command->callback([flags, &exit_code] { exit_code = ladder_command(*flags); });
}

}  // namespace octavo::cli
