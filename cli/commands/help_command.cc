// SPDX-License-Identifier: Apache-2.0
// octavo help: the help of the command or of a subcommand.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "commands/command_tree.h"
#include "commands/commands.h"
#include "exit.h"
#include "options.h"

namespace octavo::cli {
namespace {

// As --help prints it. CLI::App::help() would print that of the subcommand which was called.
std::string help_of(const CLI::App& root, const std::vector<std::string>& names) {
  const CLI::App* command = &root;
  std::string whole_name = root.get_name();
  for (const std::string& name : names) {
    const CLI::App* found = nullptr;
    for (const CLI::App* const one : subcommands_of(*command))
      if (one->get_name() == name) found = one;
    if (found == nullptr) require(unknown_subcommand(*command, name));
    command = found;
    whole_name += " " + name;
  }
  return command->get_formatter()->make_help(command, whole_name, CLI::AppFormatMode::Normal);
}

}  // namespace

void add_help_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("help", "Show the options of a subcommand");
  const auto names = std::make_shared<std::vector<std::string>>();
  command->add_option("SUBCOMMAND", *names, "whose options to show; without one, list them all")
      ->type_name("");
  add_example(*command, "octavo help explain");
  command->callback([&app, names, &exit_code] {
    std::fputs(help_of(app, *names).c_str(), stdout);
    exit_code = kExitOk;
  });
}

}  // namespace octavo::cli
