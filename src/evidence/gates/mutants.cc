// SPDX-License-Identifier: Apache-2.0
// Runs the mutants and the measures of emulated kernels, on the cases that are made for them.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "evidence/cases/emulated_cases.h"
#include "octavo/emulator.hpp"

namespace octavo {
namespace {

using emulator::Machine;
using emulator::Place;
using evidence::EmulatedCase;
using evidence::EmulatedSubject;

using Calls = std::vector<Machine::CallUse>;

// The unchanged kernel.
struct Original {
  std::vector<std::vector<std::byte>> outputs;  // of each case
  std::vector<Calls> calls_of;                  // each case
  Calls calls;                                  // of all cases
  std::string failure;
};

void merge(Calls& all, const Calls& more) {
  for (const Machine::CallUse& use : more) {
    const auto known =
        std::find_if(all.begin(), all.end(), [&](const auto& u) { return u.place == use.place; });
    if (known == all.end()) {
      all.push_back(use);
    } else {
      known->times += use.times;
      if (use.spare != nullptr) known->spare = use.spare;
      known->useful += use.useful;
    }
  }
}

Result<Original> run_original(const std::vector<EmulatedCase>& cases) {
  Original original;
  for (const EmulatedCase& c : cases) {
    Calls& calls = original.calls_of.emplace_back();
    OCTAVO_RETURN_IF_ERROR(c.run({}, [&](const Machine& machine) {
      if (!machine.report().clean() && original.failure.empty())
        original.failure = machine.report().text();
      merge(calls, machine.calls());
    }));
    merge(original.calls, calls);
    original.outputs.push_back(c.outputs());
  }
  return original;
}

// Whether a case comes to this call; if not, a run of it with the call disabled is the same.
bool comes_to(const Calls& calls, const Place& place) {
  return std::any_of(calls.begin(), calls.end(),
                     [&](const Machine::CallUse& use) { return use.place == place; });
}

Result<Mutant> run_mutant(const std::vector<EmulatedCase>& cases, const Original& original,
                          const Machine::CallUse& use) {
  Mutant mutant;
  mutant.call = describe(use.place);
  emulator::Settings settings;
  settings.mutant = use.place;
  // The number of other schedules that are tried if the default schedule detects nothing.
  constexpr std::uint64_t kSchedules = 4;
  for (std::uint64_t schedule = 0; schedule <= kSchedules && mutant.caught_by.empty(); ++schedule) {
    if (schedule > 0) settings.seed = schedule;
    for (std::size_t i = 0; i < cases.size() && mutant.caught_by.empty(); ++i) {
      if (schedule == 0 && !comes_to(original.calls_of[i], use.place)) continue;
      OCTAVO_RETURN_IF_ERROR(cases[i].run(settings, [&](const Machine& machine) {
        if (!machine.report().clean())
          mutant.caught_by = name(machine.report().findings()[0].hazard);
      }));
      if (mutant.caught_by.empty() && cases[i].outputs() != original.outputs[i])
        mutant.caught_by = "wrong result";
      if (!mutant.caught_by.empty()) mutant.in_case = cases[i].name;
    }
    if (use.useful == 0 || use.spare != nullptr) break;
  }
  if (mutant.caught_by.empty() && use.useful == 0)
    mutant.why = fmt::format("in {} calls nothing was in flight for it to act on", use.times);
  else if (mutant.caught_by.empty() && use.spare != nullptr)
    mutant.why = use.spare;
  return mutant;
}

Result<MutantReport> mutants_of(const EmulatedSubject& subject) {
  const Result<std::vector<EmulatedCase>> cases = subject.make_cases();
  if (!cases.ok()) return cases.status();
  MutantReport report;
  report.kernel = subject.kernel;
  report.brief = subject.brief;
  for (const EmulatedCase& c : *cases) report.cases.push_back(c.name);
  const Result<Original> original = run_original(*cases);
  if (!original.ok()) return original.status();
  report.failure = original->failure;
  if (!report.failure.empty()) return report;
  for (const Machine::CallUse& use : original->calls) {
    Result<Mutant> mutant = run_mutant(*cases, *original, use);
    if (!mutant.ok()) return mutant.status();
    report.mutants.push_back(std::move(mutant).value());
  }
  return report;
}

Result<MeasureReport> measure_of(const EmulatedSubject& subject) {
  const Result<std::vector<EmulatedCase>> cases = subject.make_cases();
  if (!cases.ok()) return cases.status();
  // Only the first case is measured. It has no mask, whole steps, and a last step that is not full.
  const EmulatedCase& c = cases->front();
  MeasureReport report;
  report.kernel = subject.kernel;
  report.brief = subject.brief;
  report.case_name = c.name;
  emulator::Settings settings;
  settings.measure = true;
  bool first = true;  // a call may use a quantizer for several of its operands
  OCTAVO_RETURN_IF_ERROR(c.run(settings, [&](const Machine& machine) {
    if (!machine.report().clean()) report.failure = machine.report().text();
    if (!std::exchange(first, false)) return;
    for (const auto& line : machine.measures().lines())
      report.lines.push_back(
          {describe(line.place), line.shared, line.requests, line.needed, line.taken});
    for (const auto& count : machine.measures().counts())
      report.counts.push_back({count.instruction, count.times});
    report.bank_conflicts = machine.measures().bank_conflicts();
  }));
  return report;
}

template <class Report, class Work>
Result<std::vector<Report>> for_each_kernel(const std::string& name,
                                            const EmulatorProgress& progress, const Work& work) {
  const auto kernels = evidence::subjects_by_name(name);
  if (!kernels.ok()) return kernels.status();
  std::vector<Report> reports;
  for (const EmulatedSubject& kernel : *kernels) {
    Result<Report> report = work(kernel);
    if (!report.ok()) return report.status();
    reports.push_back(std::move(report).value());
    if (progress)
      progress(static_cast<std::int64_t>(reports.size()),
               static_cast<std::int64_t>(kernels->size()));
  }
  return reports;
}

}  // namespace

Result<std::vector<MutantReport>> emulator_mutants(const std::string& kernel,
                                                   const EmulatorProgress& progress) {
  return without_exceptions([&]() -> Result<std::vector<MutantReport>> {
    return for_each_kernel<MutantReport>(kernel, progress, mutants_of);
  });
}

Result<std::vector<MeasureReport>> emulator_measure(const std::string& kernel,
                                                    const EmulatorProgress& progress) {
  return without_exceptions([&]() -> Result<std::vector<MeasureReport>> {
    return for_each_kernel<MeasureReport>(kernel, progress, measure_of);
  });
}

}  // namespace octavo
