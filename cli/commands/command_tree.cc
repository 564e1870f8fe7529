// SPDX-License-Identifier: Apache-2.0
#include "commands/command_tree.h"

#include <CLI/CLI.hpp>

#include "error.h"

namespace octavo::cli {

std::vector<const CLI::App*> subcommands_of(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<const CLI::Option*> flags_of(const CLI::App& command) {
  return command.get_options([](const CLI::Option* option) { return option->nonpositional(); });
}

Status unknown_subcommand(const CLI::App& command, const std::string& name) {
  std::string all;
  for (const CLI::App* const one : subcommands_of(command))
    all += (all.empty() ? "" : ", ") + one->get_name();
  return bad_input("the subcommand", in_quotes(name), all.empty() ? "none" : all);
}

}  // namespace octavo::cli
