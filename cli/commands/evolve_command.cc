// SPDX-License-Identifier: Apache-2.0
// octavo evolve: searches for faster kernels, and shows what a search has found.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <memory>

#include "commands/commands.h"
#include "exit.h"
#include "octavo/evolve.hpp"
#include "options.h"
#include "report.h"
#include "table.h"
#include "text_file.h"

namespace octavo::cli {
namespace {

// Set by the first Ctrl-C: the step ends, and the run can be resumed. The second one ends the
// process, after which the run can be resumed as well.
std::atomic<bool> interrupted{false};

class OnInterrupt {
 public:
  OnInterrupt() {
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted = true; };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    (void)::sigaction(SIGINT, &action, &before_);
  }
  OnInterrupt(const OnInterrupt&) = delete;
  OnInterrupt& operator=(const OnInterrupt&) = delete;
  ~OnInterrupt() { (void)::sigaction(SIGINT, &before_, nullptr); }

 private:
  struct sigaction before_ {};
};

// One line on a terminal, which is written over; nothing elsewhere.
class ProgressLine {
 public:
  explicit ProgressLine(double budget_s) : budget_s_(budget_s) {}
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine() {
    if (terminal_) std::fputs("\r\x1b[K", stderr);
  }
  void update(const EvolveProgress& p) {
    if (!terminal_) return;
    if (first_s_ < 0) first_s_ = p.seconds;
    const std::string left =
        budget_s_ > 0 ? fmt::format(", {:.0f} s left", budget_s_ - (p.seconds - first_s_)) : "";
    const std::string line = fmt::format(
        "{} generation {}/{}, {}/{} candidates, best {} {:+.1f}%{}: {}", p.arm, p.generation,
        p.generations, p.candidates, p.total, p.best, (p.best_speedup - 1) * 100, left, p.last);
    fmt::print(stderr, "\r\x1b[K{}", line.substr(0, kTextWidth - 1));
    std::fflush(stderr);
  }

 private:
  const bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  const double budget_s_;
  double first_s_ = -1;
};

struct EvolveRunFlags {
  std::string directory;
  std::string device = "auto";
  ShapeFlags shape;
  std::string dtype = "f16", causal = "none", precision = "native";
  std::string script_file;
  double seconds = 0;
  EvolveOptions options;
  JsonFlag json;
};

int finish(JsonFlag& json, const EvolveReport& result) {
  report(json, render(result), to_json(result));
  return kExitOk;
}

template <class Work>
EvolveReport in_session(double seconds, const Work& work) {
  const OnInterrupt on_interrupt;
  ProgressLine line(seconds);
  EvolveSession session;
  session.seconds = seconds;
  session.progress = [&line](const EvolveProgress& p) { line.update(p); };
  session.stop = [] { return interrupted.load(); };
  return require(work(session));
}

int run_evolve(EvolveRunFlags& flags) {
  EvolveOptions& options = flags.options;
  options.directory = flags.directory;
  // Not "auto" as elsewhere: that would open the GPU in this process.
  if (flags.device != "auto") options.device = require(parse_device(flags.device));
  options.cases = flags.shape.cases();
  options.dtype = require(parse_dtype(flags.dtype));
  options.attention.causal = require(parse_causal(flags.causal));
  options.attention.precision = require(parse_precision(flags.precision));
  if (!flags.script_file.empty())
    options.script = require(read_text_file("--script", flags.script_file));
  flags.json.open();
  return finish(flags.json, in_session(flags.seconds, [&](const EvolveSession& session) {
                  return evolve_run(options, session);
                }));
}

void add_search_flags(CLI::App& run, EvolveOptions& o, std::string& script_file) {
  constexpr const char* kGroup = "Search";
  run.add_option("--generator", o.generator,
                 "config, command, scripted, random, best_of_n, exhaustive")
      ->type_name("NAME")
      ->capture_default_str()
      ->group(kGroup);
  run.add_option("--command", o.command, "of the generator command: run by /bin/sh")
      ->type_name("COMMAND")
      ->group(kGroup);
  run.add_option("--command-seconds", o.command_seconds, "in which it must answer")
      ->type_name("S")
      ->capture_default_str()
      ->group(kGroup);
  run.add_option("--script", script_file, "of the generator scripted: JSON")
      ->type_name("FILE")
      ->group(kGroup);
  run.add_option("--information", o.information, "what it is told: free, insight, full")
      ->type_name("NAME")
      ->capture_default_str()
      ->group(kGroup);
  run.add_option("--control", o.controls,
                 "random, best_of_n: also searches so, with as many candidates; repeatable")
      ->type_name("NAME")
      ->expected(1)
      ->take_all()
      ->group(kGroup);
  for (const auto& [flag, value, meaning] :
       {std::tuple{"--generations", &o.generations, "to search"},
        {"--population", &o.population, "candidates of a generation"},
        {"--elites", &o.elites, "kernels that are kept"},
        {"--rounds", &o.rounds, "in which both kernels are timed in turn"},
        {"--again-blocks", &o.again_blocks, "fresh processes that time a kernel again"}})
    run.add_option(flag, *value, meaning)->type_name("N")->capture_default_str()->group(kGroup);
  run.add_option("--seed", o.seed, "of all random choices; drawn if not given")
      ->type_name("N")
      ->group(kGroup);
  run.add_option("--gate-seconds", o.gate_seconds, "the most that one gate may take")
      ->type_name("S")
      ->capture_default_str()
      ->group(kGroup);
  run.add_option("--may-be-missing", o.may_be_missing,
                 "a gate without which kernels are admitted if this machine cannot run it: "
                 "emulator, sanitizer, counters; repeatable")
      ->type_name("GATE")
      ->expected(1)
      ->take_all()
      ->group(kGroup);
}

void add_seconds(CLI::App& app, double& seconds) {
  app.add_option("--seconds", seconds, "stop after this time; resume goes on. 0: when complete")
      ->type_name("S")
      ->capture_default_str();
}

void add_run(CLI::App& evolve, int& exit_code) {
  CLI::App* command = evolve.add_subcommand("run", "Begin a search");
  const auto flags = std::make_shared<EvolveRunFlags>();
  command->add_option("DIRECTORY", flags->directory, "of the new run")->required();
  command
      ->add_option("--device", flags->device,
                   "auto, cuda, cuda:N, cpu: without a GPU nothing is measured or admitted")
      ->type_name("NAME")
      ->capture_default_str();
  flags->shape.add(*command, ShapeFlags::Count::many);
  add_dtype(*command, flags->dtype, "of Q, K and V: f16, bf16");
  command->add_option("--causal", flags->causal, "none, top_left, bottom_right")
      ->type_name("ALIGNMENT")
      ->capture_default_str();
  command->add_option("--precision", flags->precision, "native, fp8, int8, ...")
      ->type_name("MODE")
      ->capture_default_str();
  command
      ->add_option("--config", flags->options.config,
                   "where the search starts; default: what the library chooses")
      ->type_name("CONFIG");
  command
      ->add_option("--start-with", flags->options.seeds,
                   "another configuration to start from; repeatable")
      ->type_name("CONFIG")
      ->expected(1)
      ->take_all();
  add_seconds(*command, flags->seconds);
  add_search_flags(*command, flags->options, flags->script_file);
  flags->json.add(*command);
  add_example(*command, "octavo evolve run search --preset mission --control random --seconds 600");
  command->callback([flags, &exit_code] { exit_code = run_evolve(*flags); });
}

void add_resume(CLI::App& evolve, int& exit_code) {
  struct Flags {
    std::string directory;
    double seconds = 0;
    JsonFlag json;
  };
  CLI::App* command = evolve.add_subcommand("resume", "Continue a search that was stopped");
  const auto flags = std::make_shared<Flags>();
  command->add_option("DIRECTORY", flags->directory, "of the run")->required();
  add_seconds(*command, flags->seconds);
  flags->json.add(*command);
  add_example(*command, "octavo evolve resume search --seconds 600");
  command->callback([flags, &exit_code] {
    flags->json.open();
    exit_code = finish(flags->json, in_session(flags->seconds, [&](const EvolveSession& session) {
                         return evolve_resume(flags->directory, session);
                       }));
  });
}

// Subcommands that read a run.
template <class Work>
void add_reader(CLI::App& evolve, const std::string& name, const std::string& meaning,
                const std::string& file_flag, const std::string& file_meaning, const Work& work) {
  struct Flags {
    std::string directory, file;
    JsonFlag json;
  };
  CLI::App* command = evolve.add_subcommand(name, meaning);
  const auto flags = std::make_shared<Flags>();
  command->add_option("DIRECTORY", flags->directory, "of the run")->required();
  if (!file_flag.empty())
    command->add_option(file_flag, flags->file, file_meaning)->type_name("FILE");
  flags->json.add(*command);
  add_example(*command, fmt::format("octavo evolve {} search", name));
  command->callback([flags, work] { work(*flags); });
}

void write_file(const std::string& path, const std::string& text) {
  OutputFile file = require_written(OutputFile::open(path));
  require_written(file.write(text));
  require_written(file.commit());
}

void export_command(const std::string& directory, const std::string& patch_file) {
  const EvolveExport made = require(evolve_export(directory));
  std::fputs(made.rows.c_str(), stdout);
  if (!made.patch.empty() && patch_file.empty()) std::fputs(made.patch.c_str(), stdout);
  if (!made.patch.empty() && !patch_file.empty()) write_file(patch_file, made.patch);
  for (const std::string& note : made.notes) fmt::print(stderr, "{}\n", note);
}

}  // namespace

void add_evolve_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("evolve", "Search for faster kernels, under gates");
  command->require_subcommand(1);
  add_run(*command, exit_code);
  add_resume(*command, exit_code);
  add_reader(*command, "replay", "Select again from the samples in the ledger, without a GPU", "",
             "", [&exit_code](auto& flags) {
               flags.json.open();
               const EvolveReport result = require(evolve_replay(flags.directory));
               report(flags.json, render(result), to_json(result));
               exit_code = result.differences.empty() ? kExitOk : kExitFailed;
             });
  add_reader(*command, "report", "Show what a run has found", "--html", "also write a page",
             [&exit_code](auto& flags) {
               flags.json.open();
               const EvolveReport result = require(evolve_report(flags.directory));
               if (!flags.file.empty())
                 write_file(flags.file, require(evolve_html(flags.directory)));
               exit_code = finish(flags.json, result);
             });
  CLI::App* examine = command->add_subcommand(
      "examine", "Run a candidate in a file on the GPU; the sanitizer gate does, under its tool");
  const auto candidate = std::make_shared<std::string>();
  examine->add_option("FILE", *candidate, "that the gate has written")->required();
  add_example(*examine, "compute-sanitizer octavo evolve examine sanitized.json");
  examine->callback([candidate, &exit_code] {
    require(evolve_examine(*candidate));
    exit_code = kExitOk;
  });
  struct ExportFlags {
    std::string directory, patch;
  };
  CLI::App* exported = command->add_subcommand(
      "export", "Print the rows of config/*_shipped.h, and the patch, that a run has found");
  const auto flags = std::make_shared<ExportFlags>();
  exported->add_option("DIRECTORY", flags->directory, "of the run")->required();
  exported->add_option("--patch", flags->patch, "write the patch into a file")->type_name("FILE");
  add_example(*exported, "octavo evolve export search --patch search.patch");
  exported->callback([flags, &exit_code] {
    export_command(flags->directory, flags->patch);
    exit_code = kExitOk;
  });
}

}  // namespace octavo::cli
