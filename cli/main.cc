// SPDX-License-Identifier: Apache-2.0
// The command `octavo`.
#include "command_line.h"

int main(int argc, char** argv) { return octavo::cli::run_command_line(argc, argv); }
