// SPDX-License-Identifier: Apache-2.0
// octavo accuracy: the time and the error of each precision on easy and on hard data.
#include <CLI/CLI.hpp>
#include <memory>

#include "commands/commands.h"
#include "error.h"
#include "exit.h"
#include "octavo/accuracy.hpp"
#include "options.h"
#include "progress.h"
#include "report.h"

namespace octavo::cli {
namespace {

struct AccuracyFlags {
  DeviceFlags device;
  JsonFlag json;
  std::vector<std::string> data, precisions;
  int seeds = 3;
  std::optional<std::int64_t> keys;
  std::string plot;
};

int accuracy_command(AccuracyFlags& flags) {
  AccuracyOptions options;
  options.device = flags.device.open();
  options.data = flags.data;
  for (const std::string& mode : flags.precisions)
    options.precisions.push_back(require(parse_precision(mode)));
  options.seeds = flags.seeds;
  options.most_keys = flags.keys;
  flags.json.open();
  std::optional<OutputFile> plot;
  if (!flags.plot.empty()) {
    if (options.device.kind != Device::Kind::cuda)
      require(bad_input("--plot", "with " + name(options.device), "a GPU, where calls are timed"));
    plot.emplace(require(OutputFile::open(flags.plot)));
  }
  const AccuracyReport result = [&] {
    ProgressBar bar("accuracy");
    options.progress = [&bar](std::int64_t done, std::int64_t total) { bar.update(done, total); };
    return require(accuracy(options));
  }();
  report(flags.json, render(result), to_json(result));
  if (plot) {
    require(plot->write(require(to_svg(result))));
    require(plot->commit());
  }
  return kExitOk;
}

std::string data_names() {
  std::string names;
  for (const AccuracyData& data : accuracy_data()) names += (names.empty() ? "" : ", ") + data.name;
  return names;
}

}  // namespace

void add_accuracy_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("accuracy", "Measure the error of each precision, and its time on a GPU");
  const auto flags = std::make_shared<AccuracyFlags>();
  flags->device.add(*command);
  command->add_option("--data", flags->data, "only these: " + data_names())->type_name("NAME");
  command->add_option("--precision", flags->precisions, "only these precisions")->type_name("MODE");
  command->add_option("--seeds", flags->seeds, "number of seeds, starting at 0; the worst is shown")
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--keys", flags->keys,
                   "no more keys than this (on a GPU 131072, on the CPU 8192, emulated 1024)")
      ->type_name("N");
  command->add_option("--plot", flags->plot, "time against error as an SVG file (GPU)")
      ->type_name("FILE");
  flags->json.add(*command);
  add_example(*command, "octavo accuracy --data normal --precision fp8 --precision int8");
  command->callback([flags, &exit_code] { exit_code = accuracy_command(*flags); });
}

}  // namespace octavo::cli
