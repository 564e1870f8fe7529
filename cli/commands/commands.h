// SPDX-License-Identifier: Apache-2.0
// The subcommands. Each function adds a subcommand to the command line. The subcommand that the
// user called runs and sets the exit code, or throws Exit.
#pragma once

namespace CLI {
class App;
}

namespace octavo::cli {

void add_run_command(CLI::App& app, int& exit_code);
void add_check_command(CLI::App& app, int& exit_code);
void add_accuracy_command(CLI::App& app, int& exit_code);
void add_bench_command(CLI::App& app, int& exit_code);
void add_counters_command(CLI::App& app, int& exit_code);
void add_gate_command(CLI::App& app, int& exit_code);
void add_evidence_command(CLI::App& app, int& exit_code);
void add_quantize_command(CLI::App& app, int& exit_code);
void add_explain_command(CLI::App& app, int& exit_code);
void add_devices_command(CLI::App& app, int& exit_code);
void add_kernels_command(CLI::App& app, int& exit_code);
void add_cache_command(CLI::App& app, int& exit_code);
void add_emulator_command(CLI::App& app, int& exit_code);
void add_ladder_command(CLI::App& app, int& exit_code);
void add_evolve_command(CLI::App& app, int& exit_code);
void add_completion_command(CLI::App& app, int& exit_code);
void add_help_command(CLI::App& app, int& exit_code);

}  // namespace octavo::cli
