// The gates with library, kernels and clock exchangeable, so that tests can put faulty ones in
// their place.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "evidence/cases.h"
#include "evidence/runner.h"
#include "octavo/gate.hpp"
#include "octavo/kernels.hpp"

namespace octavo::evidence {

// What the gates look at.
struct GateSubject {
  // Kernels with what their code holds; a sentence where there are none to look at.
  std::function<Result<std::vector<KernelInfo>>()> kernels;
  MakeKernel make_kernel;
  // Samples of one series of a shape, in microseconds; a sentence where the device has no clock.
  std::function<Result<std::vector<double>>(const BenchOptions&, const BenchCase&)> time;
  // A report of kind `counters`; null where only a given one is looked at.
  std::function<Result<std::string>()> count{};
};
GateSubject library_subject(const GateOptions& options);

Result<GateReport> run_gates(const GateOptions& options, const GateSubject& subject);

// One gate each. Their state is theirs; whether one is blocked is not.
GateResult compile_gate(const std::vector<Threshold>& thresholds, const GateSubject& subject);
Result<GateResult> correctness_gate(const GateOptions& options,
                                    const std::vector<Threshold>& thresholds,
                                    const GateSubject& subject);
Result<GateResult> performance_gate(const GateOptions& options,
                                    const std::vector<Threshold>& thresholds,
                                    const GateSubject& subject, const std::string& machine);
Result<GateResult> counters_gate(const GateOptions& options,
                                 const std::vector<Threshold>& thresholds,
                                 const GateSubject& subject);

// The cases of the correctness gate: the twelve, random problems of every seed, all key tails.
std::vector<Case> gate_cases(const GateOptions& options);

// Holds a value against the threshold of that name, if there is one for this kernel and this much
// work. What is enforced and not held becomes a failure.
void hold(GateResult& result, const std::vector<Threshold>& thresholds, std::string_view name,
          const std::string& subject, std::string_view kernel, double gflop, double value);

}  // namespace octavo::evidence
