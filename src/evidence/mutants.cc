// Kernels with one call switched off, and kernels counted: both on the cases made for them.
#include <fmt/format.h>

#include <algorithm>

#include "attention/error.h"
#include "evidence/emulated_cases.h"
#include "gpu/config_text.h"
#include "octavo/emulator.hpp"

namespace octavo {
namespace {

using emulator::EmulatedSm80Forward;
using emulator::Machine;
using emulator::Place;
using evidence::EmulatedCase;

struct Outputs {
  std::vector<std::byte> out, lse;
  bool operator==(const Outputs&) const = default;
};
Outputs outputs_of(const EmulatedCase& c) {
  return {{c.inputs.out.bytes.begin(), c.inputs.out.bytes.end()},
          {c.inputs.lse.bytes.begin(), c.inputs.lse.bytes.end()}};
}

// The kernel as it is.
struct Original {
  std::vector<Outputs> outputs;  // of each case
  std::vector<Machine::CallUse> calls;
  std::string failure;
};

void merge(std::vector<Machine::CallUse>& all, const std::vector<Machine::CallUse>& more) {
  for (const Machine::CallUse& use : more) {
    const auto known =
        std::find_if(all.begin(), all.end(), [&](const auto& u) { return u.place == use.place; });
    if (known == all.end()) {
      all.push_back(use);
    } else {
      known->times += use.times;
      known->useful += use.useful;
    }
  }
}

Original run_original(const EmulatedSm80Forward& kernel, std::vector<EmulatedCase>& cases) {
  Original original;
  for (EmulatedCase& c : cases)
    run_emulated_case(kernel, c, {}, [&](const Machine& machine) {
      if (!machine.report().clean() && original.failure.empty())
        original.failure = machine.report().text();
      merge(original.calls, machine.calls());
      original.outputs.push_back(outputs_of(c));
    });
  return original;
}

Mutant run_mutant(const EmulatedSm80Forward& kernel, std::vector<EmulatedCase>& cases,
                  const Original& original, const Machine::CallUse& use) {
  Mutant mutant;
  mutant.call = describe(use.place);
  emulator::Settings settings;
  settings.mutant = use.place;
  for (std::size_t i = 0; i < cases.size() && mutant.caught_by.empty(); ++i)
    run_emulated_case(kernel, cases[i], settings, [&](const Machine& machine) {
      if (!machine.report().clean())
        mutant.caught_by = name(machine.report().findings()[0].hazard);
      else if (outputs_of(cases[i]) != original.outputs[i])
        mutant.caught_by = "wrong result";
      if (!mutant.caught_by.empty()) mutant.in_case = cases[i].posed.name();
    });
  if (mutant.caught_by.empty() && use.useful == 0)
    mutant.why = fmt::format("in {} calls nothing was in flight for it to act on", use.times);
  return mutant;
}

Result<std::vector<EmulatedCase>> cases_of(const EmulatedSm80Forward& kernel) {
  std::vector<EmulatedCase> cases;
  for (const evidence::Case& c : evidence::cases_for(kernel.config)) {
    Result<EmulatedCase> made = evidence::make_emulated_case(c);
    if (!made.ok()) return made.status();
    cases.push_back(std::move(made).value());
  }
  return cases;
}

Result<MutantReport> mutants_of(const EmulatedSm80Forward& kernel) {
  Result<std::vector<EmulatedCase>> made = cases_of(kernel);
  if (!made.ok()) return made.status();
  std::vector<EmulatedCase> cases = std::move(made).value();
  MutantReport report;
  report.kernel = "sm80_forward";
  report.brief = brief_text(kernel.config);
  for (const EmulatedCase& c : cases) report.cases.push_back(c.posed.name());
  const Original original = run_original(kernel, cases);
  report.failure = original.failure;
  if (!report.failure.empty()) return report;
  for (const Machine::CallUse& use : original.calls)
    report.mutants.push_back(run_mutant(kernel, cases, original, use));
  return report;
}

Result<MeasureReport> measure_of(const EmulatedSm80Forward& kernel) {
  // The first case alone: no mask, whole steps and a ragged one.
  Result<EmulatedCase> made =
      evidence::make_emulated_case(evidence::cases_for(kernel.config).front());
  if (!made.ok()) return made.status();
  EmulatedCase c = std::move(made).value();
  MeasureReport report;
  report.kernel = "sm80_forward";
  report.brief = brief_text(kernel.config);
  report.posed = c.posed.name();
  emulator::Settings settings;
  settings.measure = true;
  run_emulated_case(kernel, c, settings, [&](const Machine& machine) {
    if (!machine.report().clean()) report.failure = machine.report().text();
    for (const auto& line : machine.measures().lines())
      report.lines.push_back(
          {describe(line.place), line.shared, line.requests, line.needed, line.taken});
    for (const auto& count : machine.measures().counts())
      report.counts.push_back({count.instruction, count.times});
    report.bank_conflicts = machine.measures().bank_conflicts();
  });
  return report;
}

template <class Report, class Work>
Result<std::vector<Report>> for_each_kernel(const std::string& name,
                                            const EmulatorProgress& progress, const Work& work) {
  const auto kernels = evidence::kernels_by_name(name);
  if (!kernels.ok()) return kernels.status();
  std::vector<Report> reports;
  for (const EmulatedSm80Forward* kernel : *kernels) {
    Result<Report> report = work(*kernel);
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
  return for_each_kernel<MutantReport>(kernel, progress, mutants_of);
}

Result<std::vector<MeasureReport>> emulator_measure(const std::string& kernel,
                                                    const EmulatorProgress& progress) {
  return for_each_kernel<MeasureReport>(kernel, progress, measure_of);
}

}  // namespace octavo
