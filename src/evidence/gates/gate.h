// SPDX-License-Identifier: Apache-2.0
// The gates, with a replaceable library, kernels and clock, so that tests can substitute faulty
// ones.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "evidence/cases/cases.h"
#include "evidence/cases/runner.h"
#include "octavo/gate.hpp"
#include "octavo/kernels.hpp"

namespace octavo::evidence {

// What the gates examine.
struct GateSubject {
  // The kernels and the properties of their code; an error if there are none.
  std::function<Result<std::vector<KernelInfo>>()> kernels;
  MakeKernel make_kernel;
  // Samples of one series of a shape, in microseconds; an error if the device has no clock.
  std::function<Result<std::vector<double>>(const BenchOptions&, const BenchCase&)> time;
  // A report of kind `counters`; null if only a given one is used.
  std::function<Result<std::string>()> count{};
};
GateSubject library_subject(const GateOptions& options);

Result<GateReport> run_gates(const GateOptions& options, const GateSubject& subject);

// One function per gate. Each returns its own state; the caller decides whether a gate is blocked.
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

// The cases of the correctness gate: suite `twelve`, random problems of every seed, lengths that
// end at every position of a block, and problems of all sizes, drawn with options.draw_seed.
std::vector<Case> gate_cases(const GateOptions& options);

// Compares a value with the threshold of that name, if there is one for this kernel and this amount
// of work. A violated threshold that is enforced becomes a failure.
void check_threshold(GateResult& result, const std::vector<Threshold>& thresholds,
                     std::string_view name, const std::string& subject, std::string_view kernel,
                     double gflop, double value);

}  // namespace octavo::evidence
