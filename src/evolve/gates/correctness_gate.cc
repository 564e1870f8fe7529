// SPDX-License-Identifier: Apache-2.0
// The correctness gate: the shapes of the task, the edges of the kernel's tiles, and problems drawn
// after the candidate was written; on the GPU if the task has one, else small ones in the emulator.
#include <fmt/format.h>

#include "evidence/gates/check.h"
#include "evidence/gates/gpu_suite.h"
#include "evolve/gates/emulated_judge.h"
#include "evolve/gates/gpu_child.h"
#include "evolve/gates/standard_gates.h"
#include "evolve/gates/unseen_cases.h"

namespace octavo::evolve {
namespace {

GateOutcome check_on_gpu(const Subject& subject, const Context& context) {
  constexpr int kUnseen = 48;
  constexpr std::int64_t kLongest = 700;
  std::vector<evidence::Case> cases = public_cases(context.task, subject.config);
  const std::size_t known = cases.size();
  for (const evidence::Case& c : edge_cases(subject.config)) cases.push_back(c);
  for (const evidence::Case& c : unseen_cases(subject.config, context.seed, kUnseen, kLongest))
    cases.push_back(c);
  CheckOptions options;
  options.device = context.task.device;
  options.repeat = 3;  // all must agree in every bit
  const evidence::Runner runner = evidence::runner_of(
      context.task.device, kernel_of(subject.config), evidence::OnStream::standard);
  const Result<CheckReport> report =
      evidence::check_cases(options, cases, runner, evidence::oracle_for(options.device));
  if (!report.ok()) return not_done(report.status().message());
  if (!report->failures.empty())
    return rejected(fmt::format("{} failures in {} cases: {}", report->failures.size(),
                                report->cases, report->failures.front().substr(0, 400)));
  if (2 * report->cases < static_cast<std::int64_t>(cases.size()))
    return rejected(fmt::format("The kernel serves only {} of {} cases: {}", report->cases,
                                cases.size(),
                                report->not_run_reasons.empty() ? "" : report->not_run_reasons[0]));
  double worst = 0;
  for (const CheckRow& row : report->rows) worst = std::max(worst, row.worst_bound_ratio);
  GateOutcome outcome = passed(
      fmt::format("{} cases, {} of them drawn from seed {} after the candidate was written, are "
                  "within {:.2f} of their bounds on the GPU.",
                  report->cases, kUnseen, context.seed, worst));
  outcome.figures = {{"cases", report->cases},
                     {"public", known},
                     {"unseen", kUnseen},
                     {"seed", context.seed},
                     {"worst_bound_ratio", worst}};
  return outcome;
}

class CorrectnessGate : public Gate {
 public:
  std::string_view name() const override { return "correctness"; }

  GateOutcome judge(const Candidate& candidate, const Context& context) override {
    const Result<Subject> subject = subject_of(candidate);
    if (!subject.ok()) return rejected(subject.status().message());
    if (context.task.device.kind == Device::Kind::cuda)
      return judge_on_gpu(*subject, context, name(),
                          [&] { return check_on_gpu(*subject, context); });
    constexpr int kUnseen = 8;
    constexpr std::int64_t kLongest = 140;
    const std::vector<evidence::Case> cases =
        unseen_cases(subject->config, context.seed, kUnseen, kLongest);
    GateOutcome outcome =
        judge_emulated(*subject, context, name(), [&](const EmulatedKernel& kernel) {
          return check_emulated(kernel, cases, {context.seed});
        });
    outcome.figures["seed"] = context.seed;
    outcome.figures["unseen"] = kUnseen;
    return outcome;
  }
};

}  // namespace

std::unique_ptr<Gate> correctness_gate() { return std::make_unique<CorrectnessGate>(); }

}  // namespace octavo::evolve
