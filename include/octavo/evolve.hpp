// SPDX-License-Identifier: Apache-2.0
// Evolve: searches for faster kernels. A generator proposes candidates, configurations or patches
// of the device sources; gates let those pass that are right, faster and can show why; a ledger
// keeps everything (docs/evolve.md). Needs SQLite.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/evidence.hpp"

namespace octavo {

struct EvolveProgress {
  std::string arm;  // "evolve", or a control
  int generation = 0, generations = 0;
  std::int64_t candidates = 0, total = 0;  // judged so far, and in the whole run, in all arms
  std::string best;                        // the id of the main arm's best kernel
  double best_speedup = 1;                 // over the base
  double seconds = 0;                      // of all sessions of this run
  std::string last;                        // what happened last, in one sentence
};

struct EvolveOptions {
  std::string directory;  // of a new run
  // cuda; on the CPU the gates run that need no GPU, and nothing is admitted. Empty: the first GPU,
  // if there is one. The calling process must not have used a GPU: candidates run in its children.
  std::optional<Device> device{};
  std::vector<BenchCase> cases;  // the score is the geometric mean over them; empty: mission
  DType dtype = DType::f16;
  Options attention{};
  // Where the search starts, and what candidates are compared with: a configuration. Empty: what
  // the library chooses for the first case, compared with what it chooses for each.
  std::string config;
  std::vector<std::string> seeds;    // more configurations to start from
  std::string generator = "config";  // config, random, best_of_n, exhaustive, command, scripted
  std::string command;               // with `command`: run by /bin/sh
  double command_seconds = 600;
  std::string script;                 // with `scripted`: its JSON
  std::string information = "full";   // free, insight, full: what the generator is told
  std::vector<std::string> controls;  // random, best_of_n: with the same number of candidates
  int generations = 10;
  int population = 8;
  int elites = 3;
  int rounds = 20;       // in which both kernels are timed in turn, for each case
  int again_blocks = 3;  // fresh processes that time a kernel again before it is admitted
  double gate_seconds = 120;
  std::optional<std::uint64_t> seed{};      // empty: drawn, and kept in the ledger
  std::vector<std::string> may_be_missing;  // of emulator, sanitizer, counters: need not be done
};

// How long a session goes on, and what it shows.
struct EvolveSession {
  double seconds = 0;  // 0: until the search is complete
  std::function<void(const EvolveProgress&)> progress{};
  std::function<bool()> stop{};  // asked between steps
};

struct EvolveElite {
  std::string arm, id;
  std::string config, patch;
  double speedup = 1, low = 1, high = 1;  // over the base, of the samples before the admission
  std::vector<double> shape_speedups;     // in the order of the cases
  std::vector<double> shape_us;
  std::vector<double> peak_fractions;  // of the tensor cores' peak
  std::vector<std::string> levers;
  std::string audit;  // which gates it passed, and which were not done
};
struct EvolveEffect {
  std::string candidate, change;
  double speedup = 1, low = 1, high = 1;
  std::string not_measured;  // why; empty if it is measured
};
// How many candidates a gate has rejected.
struct EvolveRejections {
  std::string gate;
  std::int64_t rejected = 0, not_done = 0;
};
struct EvolveReport {
  std::string directory, kernel, base, generator, information;
  std::uint64_t seed = 0;
  bool finished = false;
  double seconds = 0;
  std::vector<BenchCase> cases;
  std::int64_t candidates = 0, judged = 0, duplicates = 0;
  std::vector<EvolveElite> elites;  // of the main arm, then of the controls
  std::vector<EvolveRejections> rejections;
  std::vector<EvolveEffect> effects;
  std::vector<std::string> differences;  // of a replay: what the samples do not confirm
};

// Begins a run, or continues one, and reports on it.
OCTAVO_API Result<EvolveReport> evolve_run(const EvolveOptions& options,
                                           const EvolveSession& session = {});
OCTAVO_API Result<EvolveReport> evolve_resume(const std::string& directory,
                                              const EvolveSession& session = {});
// Reads a run. Needs no GPU and changes nothing.
OCTAVO_API Result<EvolveReport> evolve_report(const std::string& directory);
// Selects again from the samples in the ledger.
OCTAVO_API Result<EvolveReport> evolve_replay(const std::string& directory);
OCTAVO_API std::string to_json(const EvolveReport& report);
// One page without references to other files.
OCTAVO_API Result<std::string> evolve_html(const std::string& directory);

struct EvolveExport {
  std::string rows;   // of config/*_shipped.h, for the elites without a patch
  std::string patch;  // of the best elite, a unified diff over src; empty: it has none
  std::vector<std::string> notes;
};
OCTAVO_API Result<EvolveExport> evolve_export(const std::string& directory);

// Runs the candidate of a file that the sanitizer gate has written, in this process, so that a tool
// can watch it. The error says what it gets wrong.
OCTAVO_API Status evolve_examine(const std::string& path);

}  // namespace octavo
