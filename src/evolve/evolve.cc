// SPDX-License-Identifier: Apache-2.0
// The public functions: they assemble the engine from a run's settings.
#include "octavo/evolve.hpp"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "attention/validate.h"
#include "base/error.h"
#include "evidence/cases/planned_case.h"
#include "evolve/engine.h"
#include "evolve/gates/examine.h"
#include "evolve/gates/gpu_child.h"
#include "evolve/gates/standard_gates.h"
#include "evolve/isolation/isolate.h"
#include "evolve/summary.h"
#include "gpu/forward/launch_oracle.h"
#include "gpu/jit/kernel_archive.h"
#include "gpu/jit/kernel_store.h"
#include "gpu/jit/nvrtc.h"
#include "octavo/kernels.hpp"

namespace octavo {
namespace {

using namespace evolve;

constexpr std::string_view kGenerators[] = {"config",     "random",  "best_of_n",
                                            "exhaustive", "command", "scripted"};

Result<std::unique_ptr<Generator>> generator_named(std::string_view name, const Settings& s) {
  if (name == "config") return config_generator();
  if (name == "random") return random_generator();
  if (name == "best_of_n") return best_of_n_generator();
  if (name == "exhaustive") return exhaustive_generator();
  if (name == "command") {
    if (s.command.empty()) return invalid("the command", "empty", "a command for /bin/sh");
    return command_generator({s.command, s.command_limit_s});
  }
  if (name == "scripted") return scripted_generator(s.script);
  return invalid("the generator", fmt::format("'{}'", name),
                 fmt::format("{}", fmt::join(kGenerators, ", ")));
}

// The configuration that the library chooses for a problem. On a GPU a child asks for it, as this
// process must not open the GPU; elsewhere it is the one of an H200.
Result<std::string> chosen_config(const Problem& problem, const Task& task) {
  const Device device = task.device;
  if (device.kind != Device::Kind::cuda) {
    const Result<Explanation> explained = explain_on_known_gpu(problem, "h200");
    if (!explained.ok()) return explained.status();
    return explained->config;
  }
  Limits limits;
  limits.gpu = true;
  limits.isolation = task.gpu_isolation;
  const ChildResult child = run_isolated(limits, [&] {
    const Result<Explanation> explained = explain(problem, device);
    return explained.ok() ? "+" + explained->config : "-" + explained.status().message();
  });
  if (!child.finished()) return Status(ErrorCode::device_error, child.reason);
  if (!child.output.starts_with('+'))
    return Status(ErrorCode::unsupported, child.output.substr(child.output.empty() ? 0 : 1));
  return child.output.substr(1);
}

Status check_range(std::string_view name, double value, double least, double most) {
  if (value >= least && value <= most) return {};
  return invalid(name, fmt::format("{:g}", value), fmt::format("{:g} to {:g}", least, most));
}

Status check_options(const EvolveOptions& o) {
  if (o.directory.empty()) return invalid("the directory", "empty", "a path");
  if (o.device && o.device->kind == Device::Kind::emulator)
    return unsupported("device", name(*o.device), "cuda, cpu for evolve");
  OCTAVO_RETURN_IF_ERROR(check_range("generations", o.generations, 1, 100000));
  OCTAVO_RETURN_IF_ERROR(check_range("population", o.population, 1, 1000));
  OCTAVO_RETURN_IF_ERROR(check_range("elites", o.elites, 1, 100));
  OCTAVO_RETURN_IF_ERROR(check_range("rounds", o.rounds, 5, 10000));
  OCTAVO_RETURN_IF_ERROR(check_range("again_blocks", o.again_blocks, 2, 100));
  OCTAVO_RETURN_IF_ERROR(check_range("gate_seconds", o.gate_seconds, 1, 86400));
  OCTAVO_RETURN_IF_ERROR(check_range("command_seconds", o.command_seconds, 1, 86400));
  for (const std::string& control : o.controls)
    if (control != "random" && control != "best_of_n")
      return invalid("a control", fmt::format("'{}'", control), "random, best_of_n");
  for (const std::string& gate : o.may_be_missing)
    if (gate != "emulator" && gate != "sanitizer" && gate != "counters")
      return invalid("a gate that may be missing", fmt::format("'{}'", gate),
                     "emulator, sanitizer, counters");
  return {};
}

std::uint64_t drawn_seed() {
  std::uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, 0) != sizeof seed)
    seed = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  return seed;
}

Result<Settings> settings_of(const EvolveOptions& o) {
  OCTAVO_RETURN_IF_ERROR(check_options(o));
  Settings s;
  s.task.dtype = o.dtype;
  s.task.attention = o.attention;
  find_device(s.task, o.device);
  s.task.shapes = evidence::named_cases(
      o.cases.empty() ? std::vector<BenchCase>{{"mission", 1, 8, 512, 64}} : o.cases);
  evidence::PlannedCaseOptions planned;
  planned.dtype = o.dtype;
  planned.attention = o.attention;
  OCTAVO_RETURN_IF_ERROR(evidence::validate_cases(planned, s.task.shapes));
  for (const BenchCase& shape : s.task.shapes)
    if (shape.head_dim_v)
      return invalid("head_dim_v", fmt::format("{}", *shape.head_dim_v), "that of Q and K");
  s.config = o.config;
  if (o.config.empty()) {
    Result<std::string> chosen =
        chosen_config(evidence::problem_of(o.dtype, o.attention, s.task.shapes[0]), s.task);
    if (!chosen.ok()) return chosen.status();
    s.config = *std::move(chosen);
  }
  const Result<ConfigSpace> space = ConfigSpace::around(s.config);
  if (!space.ok()) return space.status();
  s.config = space->base();
  s.task.kernel = space->kernel();
  if (!o.config.empty() || s.task.shapes.size() == 1) s.task.base_config = s.config;
  for (const std::string& seed : o.seeds)
    if (const Result<std::string> config = space->complete(seed); !config.ok())
      return config.status();
  s.seeds = o.seeds;
  s.generator = o.generator;
  s.command = o.command;
  s.command_limit_s = o.command_seconds;
  s.script = o.script;
  const Result<Information> information = information_named(o.information);
  if (!information.ok()) return information.status();
  s.information = *information;
  s.controls = o.controls;
  s.generations = o.generations;
  s.population = o.population;
  s.elites = o.elites;
  s.rounds = o.rounds;
  s.again_blocks = o.again_blocks;
  s.gate_limit_s = o.gate_seconds;
  s.seed = o.seed.value_or(drawn_seed());
  s.may_be_missing = o.may_be_missing;
  OCTAVO_RETURN_IF_ERROR(generator_named(s.generator, s).status());
  return s;
}

// Compiles a candidate's kernel into its cache. Not with a patch: what a candidate's source does to
// the compiler is the compile gate's business.
void compile_candidate(const Candidate& candidate, const CubinCache& cache) {
  const Result<KernelConfig> config = parse_config(candidate.kernel, candidate.config);
  if (!config.ok() || !candidate.patch.empty()) return;
  KernelStore::Parts parts;
  parts.cache = cache;
  parts.compiler_version = nvrtc_version;
  parts.compile = [](const KernelSource& source) { return compile(source); };
  (void)KernelStore(std::move(parts)).get(source_of(*config));
}

// Every candidate has a cache of its own, so the oracle is compiled once and stored in each. On
// other chips than Hopper each compiles its own.
void share_oracle(const std::vector<CubinCache>& caches) {
  constexpr int kHopper = 90;
  const KernelSource source = oracle_source(kHopper);
  const Result<std::string> version = nvrtc_version();
  const Result<CompiledKernel> oracle = compile(source);
  if (!version.ok() || !oracle.ok()) return;
  for (const CubinCache& cache : caches) (void)cache.store(cache_key(source, *version), *oracle);
}

// Compiles a generation's kernels on all cores before the first gate asks for one.
void compile_at_once(const std::string& directory, const std::vector<Candidate>& candidates) {
  Limits limits;
  limits.seconds = 300;
  limits.memory_bytes = std::uint64_t{32} << 30;
  limits.directory = directory + "/candidates";
  (void)run_isolated(limits, [&] {
    std::vector<CubinCache> caches;
    for (const Candidate& candidate : candidates)
      caches.emplace_back(fmt::format("{}/candidates/{}/cubins", directory, candidate.id));
    std::atomic<std::size_t> next = 0;
    std::vector<std::thread> workers;
    workers.emplace_back([&] { share_oracle(caches); });
    const std::size_t count =
        std::min<std::size_t>(candidates.size(), std::max(1U, std::thread::hardware_concurrency()));
    for (std::size_t i = 0; i < count; ++i)
      workers.emplace_back([&] {
        for (std::size_t n = next++; n < candidates.size(); n = next++)
          compile_candidate(candidates[n], caches[n]);
      });
    for (std::thread& worker : workers) worker.join();
    return std::string();
  });
}

Result<bool> run_session(const Settings& settings, Ledger& ledger, const EvolveSession& session) {
  const std::unique_ptr<Measurer> measurer = gpu_measurer();
  Parts parts;
  for (std::unique_ptr<Gate>& gate : standard_gates(settings.task)) {
    if (gate->name() == "counters")
      parts.gates.push_back(std::make_unique<PerformanceGate>(*measurer, settings.rounds));
    parts.gates.push_back(std::move(gate));
  }
  parts.measurer = measurer.get();
  parts.sources = changeable_sources(settings.task.kernel, settings.config);
  for (const std::string& arm : arms_of(settings)) {
    Result<std::unique_ptr<Generator>> generator =
        generator_named(arm == kMainArm ? settings.generator : arm, settings);
    if (!generator.ok()) return generator.status();
    parts.generators[arm] = *std::move(generator);
  }
  const std::string directory = ledger.directory();
  parts.prepare = [directory](const std::vector<Candidate>& candidates) {
    compile_at_once(directory, candidates);
  };
  const auto begin = std::chrono::steady_clock::now();
  parts.stop = [&session, begin] {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    return (session.seconds > 0 && spent.count() > session.seconds) ||
           (session.stop && session.stop());
  };
  parts.progress = session.progress;
  Result<Engine> engine = Engine::make(settings, ledger, std::move(parts));
  if (!engine.ok()) return engine.status();
  return engine->run();
}

Result<EvolveReport> session_and_report(Ledger& ledger, const EvolveSession& session) {
  const Result<LedgerContents> contents = ledger.read();
  if (!contents.ok()) return contents.status();
  const Result<Settings> settings = settings_from_json(contents->settings);
  if (!settings.ok()) return settings.status();
  const Result<bool> complete = run_session(*settings, ledger, session);
  if (!complete.ok()) return complete.status();
  return evolve_report(ledger.directory());
}

}  // namespace

Result<EvolveReport> evolve_run(const EvolveOptions& options, const EvolveSession& session) {
  return without_exceptions([&]() -> Result<EvolveReport> {
    const Result<Settings> settings = settings_of(options);
    if (!settings.ok()) return settings.status();
    Result<Ledger> ledger = Ledger::create(options.directory, evolve::to_json(*settings));
    if (!ledger.ok()) return ledger.status();
    return session_and_report(*ledger, session);
  });
}

Status evolve_examine(const std::string& path) {
  return without_exceptions([&] { return examine(path); });
}

Result<EvolveReport> evolve_resume(const std::string& directory, const EvolveSession& session) {
  return without_exceptions([&]() -> Result<EvolveReport> {
    Result<Ledger> ledger = Ledger::open(directory, false);
    if (!ledger.ok()) return ledger.status();
    return session_and_report(*ledger, session);
  });
}

}  // namespace octavo
