// SPDX-License-Identifier: Apache-2.0
// octavo completion: prints a script that completes this command in a shell.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "commands/commands.h"
#include "commands/completion_script.h"
#include "error.h"
#include "exit.h"
#include "octavo/evidence.hpp"
#include "octavo/kernels.hpp"
#include "options.h"

namespace octavo::cli {
namespace {

template <class Range>
std::vector<std::string> names_of(const Range& values) {
  std::vector<std::string> names;
  for (const auto& value : values) names.emplace_back(name(value));
  return names;
}

std::vector<std::string> device_names() {
  std::vector<std::string> names = {"auto"};
  for (const DeviceInfo& info : devices())
    if (info.available) names.push_back(name(info.device));
  return names;
}

// The values that the library accepts; none for flags that take files, numbers or anything else.
std::vector<std::string> values_of(const std::string& flag) {
  if (flag == "--device") return device_names();
  if (flag == "--precision") return names_of(kAllPrecisions);
  if (flag == "--dtype" || flag == "--out-dtype" || flag == "--format") return names_of(kAllDTypes);
  if (flag.find("granularity") != std::string::npos) return names_of(kAllGranularities);
  if (flag == "--causal")
    return names_of(std::vector{Causal::none, Causal::top_left, Causal::bottom_right});
  if (flag == "--rule") return names_of(std::vector{ScaleRule::amax, ScaleRule::least_squares});
  std::vector<std::string> names;
  if (flag == "--gpu")
    for (const KnownGpu& gpu : known_gpus()) names.push_back(gpu.name);
  if (flag == "--preset")
    for (const Preset& preset : presets()) names.emplace_back(preset.name);
  return names;
}

void print_completion(const CLI::App& app, const std::string& shell) {
  std::string all;
  for (const CompletionShell& one : kCompletionShells) {
    if (shell == one.name) {
      std::fputs(one.script(app, values_of).c_str(), stdout);
      return;
    }
    all += (all.empty() ? "" : ", ") + std::string(one.name);
  }
  require(bad_input("the shell", in_quotes(shell), all));
}

}  // namespace

void add_completion_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("completion", "Print the completion script of a shell");
  const auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell, "bash, zsh, fish")->required()->type_name("");
  add_example(*command, "source <(octavo completion bash)");
  command->callback([&app, shell, &exit_code] {
    print_completion(app, *shell);
    exit_code = kExitOk;
  });
}

}  // namespace octavo::cli
