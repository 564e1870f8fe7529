// SPDX-License-Identifier: Apache-2.0
// Subcommands by their names, as CLI11 describes them.
#pragma once

#include <string>
#include <vector>

#include "octavo/octavo.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace octavo::cli {

std::vector<const CLI::App*> subcommands_of(const CLI::App& command);
// The flags of one command, without those of its subcommands and without positional arguments.
std::vector<const CLI::Option*> flags_of(const CLI::App& command);

// The error that `command` has no subcommand of that name.
Status unknown_subcommand(const CLI::App& command, const std::string& name);

}  // namespace octavo::cli
