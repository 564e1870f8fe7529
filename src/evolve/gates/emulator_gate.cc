// SPDX-License-Identifier: Apache-2.0
// The emulator gate: the candidate's own sources on the CPU, with every hazard that the emulator
// finds and every result held against fp64, under three schedules. Needs no GPU.
#include <fmt/format.h>
#include <sys/stat.h>

#include "evidence/gates/check.h"
#include "evolve/gates/emulated_judge.h"
#include "evolve/gates/standard_gates.h"

namespace octavo::evolve {
#if defined(OCTAVO_HAS_EMULATOR)
namespace {

// The kernel's library, which a gate before may have built.
HostBuild build_once(const Subject& subject, const Limits& limits) {
  const std::string library = limits.directory + "/host/candidate.so";
  struct stat info {};
  if (stat(library.c_str(), &info) == 0)
    return {HostBuild::End::built, "The kernel was compiled for the emulator before.", library};
  return build_host_kernel(subject.config, subject.patched.overlay(), limits);
}

// Shortens a child's failure to its first line, and where the emulator saw a hazard.
std::string short_failure(const std::string& failure) {
  constexpr std::size_t kMost = 500;
  std::string text = failure.substr(0, failure.find('\n'));
  constexpr std::string_view kWhere = "\n  where ";
  if (const std::size_t at = failure.find(kWhere); at != std::string::npos) {
    std::size_t begin = failure.find_first_not_of(' ', at + kWhere.size());
    begin = std::min(begin, failure.size());
    text += ", " + failure.substr(begin, failure.find('\n', begin) - begin);
  }
  return text.substr(0, kMost);
}

}  // namespace

GateOutcome judge_emulated(const Subject& subject, const Context& context, std::string_view gate,
                           const JudgeKernel& judge) {
  Limits limits = limits_of(context);
  std::optional<EmulatedKernel> kernel;
  if (subject.patched.sources.empty()) kernel = built_in_kernel(subject.config);
  HostBuild build;
  if (!kernel) {
    build = build_once(subject, limits);
    if (build.end == HostBuild::End::no_compiler) return not_done(build.reason);
    if (build.end == HostBuild::End::refused) return rejected(build.reason);
  }
  limits.directory.clear();
  limits.untrusted_code = !subject.patched.sources.empty();
  const ChildResult child = run_isolated(limits, [&] {
    if (!kernel) {
      Result<EmulatedKernel> loaded = load_host_kernel(subject.config, build.library);
      if (!loaded.ok()) return to_answer(rejected(loaded.status().message()));
      kernel = *loaded;
    }
    return to_answer(judge(*kernel));
  });
  return outcome_of(child, gate);
}

GateOutcome check_emulated(const EmulatedKernel& kernel, const std::vector<evidence::Case>& cases,
                           const std::vector<std::optional<std::uint64_t>>& schedules) {
  CheckOptions options;
  options.device = {Device::Kind::emulator, 90};
  options.repeat = 1;
  std::int64_t ran = 0;
  double worst = 0;
  for (const std::optional<std::uint64_t>& schedule : schedules) {
    const Result<CheckReport> report =
        evidence::check_cases(options, cases, emulated_runner(kernel, schedule));
    if (!report.ok()) return rejected(report.status().message());
    if (!report->failures.empty()) {
      GateOutcome outcome = rejected(
          fmt::format("{} failures in {} cases{}: {}", report->failures.size(), report->cases,
                      schedule ? fmt::format(" under schedule {}", *schedule) : "",
                      short_failure(report->failures.front())));
      outcome.figures["failures"] = report->failures.size();
      outcome.figures["report"] = report->failures.front().substr(0, 4000);
      return outcome;
    }
    if (2 * report->cases < static_cast<std::int64_t>(cases.size()))
      return rejected(
          fmt::format("The kernel serves only {} of {} cases: {}", report->cases, cases.size(),
                      report->not_run_reasons.empty() ? "" : report->not_run_reasons[0]));
    ran += report->cases;
    for (const CheckRow& row : report->rows) worst = std::max(worst, row.worst_bound_ratio);
  }
  GateOutcome outcome = passed(fmt::format(
      "{} runs under {} schedules have no hazard and are within {:.2f} of their bounds.", ran,
      schedules.size(), worst));
  outcome.figures = {{"cases", ran}, {"schedules", schedules.size()}, {"worst_bound_ratio", worst}};
  return outcome;
}

#else

GateOutcome judge_emulated(const Subject& /*subject*/, const Context& /*context*/,
                           std::string_view /*gate*/, const JudgeKernel& /*judge*/) {
  return not_done("This library was built without the emulator.");
}

GateOutcome check_emulated(const EmulatedKernel& /*kernel*/,
                           const std::vector<evidence::Case>& /*cases*/,
                           const std::vector<std::optional<std::uint64_t>>& /*schedules*/) {
  return not_done("This library was built without the emulator.");
}

#endif

namespace {

class EmulatorGate : public Gate {
 public:
  std::string_view name() const override { return "emulator"; }

  GateOutcome judge(const Candidate& candidate, const Context& context) override {
    const Result<Subject> subject = subject_of(candidate);
    if (!subject.ok()) return rejected(subject.status().message());
    const std::vector<evidence::Case> cases = edge_cases(subject->config);
    return judge_emulated(*subject, context, name(), [&](const EmulatedKernel& kernel) {
      return check_emulated(kernel, cases, {std::nullopt, 1, 2});
    });
  }
};

}  // namespace

std::unique_ptr<Gate> emulator_gate() { return std::make_unique<EmulatorGate>(); }

}  // namespace octavo::evolve
