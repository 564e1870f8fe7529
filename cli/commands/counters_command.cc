// SPDX-License-Identifier: Apache-2.0
// octavo counters: hardware counters of a kernel.
#include <CLI/CLI.hpp>
#include <memory>

#include "commands/commands.h"
#include "exit.h"
#include "octavo/counters.hpp"
#include "options.h"
#include "progress.h"
#include "report.h"

namespace octavo::cli {
namespace {

struct CountersFlags {
  DeviceFlags device;
  ShapeFlags shape;
  AttentionFlags attention;
  JsonFlag json;
  std::string dtype = "f16";
  std::uint64_t seed = 42;
  std::string config;
};

int counters_command(CountersFlags& flags) {
  CountersOptions options;
  options.device = flags.device.open();
  options.cases = flags.shape.cases();
  options.dtype = require(parse_dtype(flags.dtype));
  options.attention = flags.attention.options();
  options.seed = flags.seed;
  options.config = flags.config;
  flags.json.open();
  const CountersReport result = [&] {
    ProgressBar bar("counters");
    options.progress = [&bar](std::int64_t done, std::int64_t total) { bar.update(done, total); };
    return require(counters(options));
  }();
  report(flags.json, render(result), to_json(result));
  return result.measured() ? kExitOk : kExitFailed;
}

}  // namespace

void add_counters_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "counters", "Read a GPU's hardware counters with CUPTI; by default for the five presets");
  const auto flags = std::make_shared<CountersFlags>();
  flags->device.add(*command);
  flags->shape.add(*command, ShapeFlags::Count::many);
  add_dtype(*command, flags->dtype, "of the random inputs: f32, f16, bf16");
  add_seed(*command, flags->seed);
  command->add_option("--config", flags->config, "a kernel configuration to force")
      ->type_name("CONFIG");
  flags->json.add(*command);
  flags->attention.add(*command);
  add_example(*command,
              "octavo counters --device cuda --shape 1,16,16384,128 --json counters.json");
  command->callback([flags, &exit_code] { exit_code = counters_command(*flags); });
}

}  // namespace octavo::cli
