// SPDX-License-Identifier: Apache-2.0
// The first gate: what a candidate may change (policy.h).
#include "evolve/gates/policy.h"
#include "evolve/gates/standard_gates.h"
#include "evolve/gates/subject.h"

namespace octavo::evolve {
namespace {

GateOutcome refused(const PolicyFinding& finding) {
  GateOutcome outcome = rejected(finding.reason);
  outcome.figures["rule"] = finding.rule;
  return outcome;
}

class PolicyGate : public Gate {
 public:
  std::string_view name() const override { return "policy"; }

  GateOutcome judge(const Candidate& candidate, const Context& context) override {
    if (candidate.kernel != context.task.kernel)
      return refused({"formats", "The candidate is a kernel of the family '" + candidate.kernel +
                                     "', and the task is about '" + context.task.kernel + "'."});
    const Result<Subject> subject = subject_of(candidate);
    if (!subject.ok()) return refused({"text", subject.status().message()});
    if (const auto finding =
            judge_config(candidate.kernel, context.task.base_config, candidate.config))
      return refused(*finding);
    if (const auto finding = judge_patch(subject->patched)) return refused(*finding);
    GateOutcome outcome = passed("The candidate changes only what it may change.");
    nlohmann::json changed = nlohmann::json::array();
    for (const ChangedSource& source : subject->patched.sources) changed.push_back(source.name);
    outcome.figures["changed"] = changed;
    return outcome;
  }
};

}  // namespace

std::unique_ptr<Gate> policy_gate() { return std::make_unique<PolicyGate>(); }

}  // namespace octavo::evolve
