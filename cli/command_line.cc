// SPDX-License-Identifier: Apache-2.0
#include "command_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <new>
#include <string>

#include "colour.h"
#include "commands/command_tree.h"
#include "commands/commands.h"
#include "error.h"
#include "exit.h"
#include "octavo/octavo.hpp"

namespace octavo::cli {
namespace {

int fail(int code, std::string message) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  fmt::print(stderr, "{}{}\n", error_prefix(shows_colour(STDERR_FILENO)), message);
  return code;
}

// CLI11 reports an unknown subcommand as "a subcommand is required".
std::string usage_message(const CLI::App& app, const CLI::ParseError& error, int argc,
                          char** argv) {
  if (app.get_subcommands().empty() && argc > 1 && argv[1][0] != '-') {
    return unknown_subcommand(app, argv[1]).message();
  }
  return fmt::format("{} (--help says more)", error.what());
}

int parse_and_run(CLI::App& app, int argc, char** argv, int& exit_code) {
  try {
    app.parse(argc, argv);
    return exit_code;
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    return fail(kExitUsage, usage_message(app, error, argc, argv));
  } catch (const Exit& exit) {
    return fail(exit.code(), exit.what());
  } catch (const std::bad_alloc&) {
    return fail(kExitFailed, "there is not enough memory.");
  } catch (const std::exception& error) {
    return fail(kExitFailed, fmt::format("the command could not finish: {}.", error.what()));
  }
}

}  // namespace

int run_command_line(int argc, char** argv) {
  int exit_code = kExitOk;
  CLI::App app("Fused attention: O = softmax(scale Q K^T + mask) V, in 32, 16 and 8 bits.",
               "octavo");
  app.set_version_flag("-V,--version", "octavo " + std::string(octavo::version()));
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  app.footer("octavo help SUBCOMMAND shows its options.\n");
  add_run_command(app, exit_code);
  add_check_command(app, exit_code);
  add_accuracy_command(app, exit_code);
  add_bench_command(app, exit_code);
  add_counters_command(app, exit_code);
  add_gate_command(app, exit_code);
  add_evidence_command(app, exit_code);
  add_quantize_command(app, exit_code);
  add_explain_command(app, exit_code);
  add_devices_command(app, exit_code);
  add_kernels_command(app, exit_code);
  add_cache_command(app, exit_code);
  add_emulator_command(app, exit_code);
  add_ladder_command(app, exit_code);
  add_evolve_command(app, exit_code);
  add_completion_command(app, exit_code);
  add_help_command(app, exit_code);
  const int code = parse_and_run(app, argc, argv, exit_code);
  if (std::fflush(stdout) != 0 && code == kExitOk) {
    return fail(kExitFailed, "standard output cannot be written.");
  }
  return code;
}

}  // namespace octavo::cli
