// SPDX-License-Identifier: Apache-2.0
// The command line of `octavo`.
#pragma once

namespace octavo::cli {

// Parses the arguments, runs one subcommand, and turns any failure into an exit code, which it
// returns, and at most one sentence on stderr.
int run_command_line(int argc, char** argv);

}  // namespace octavo::cli
