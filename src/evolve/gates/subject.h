// SPDX-License-Identifier: Apache-2.0
// What the gates share: a candidate as values, limits of its children, and how an end of a child
// becomes a verdict.
#pragma once

#include <string>

#include "evolve/gate.h"
#include "evolve/gates/kernel_family.h"
#include "evolve/gates/patch.h"
#include "evolve/isolation/isolate.h"

namespace octavo::evolve {

struct Subject {
  KernelConfig config;
  Patched patched;
};
// An error if the configuration cannot be read or the patch does not apply.
Result<Subject> subject_of(const Candidate& candidate);

Limits limits_of(const Context& context);

// In a child: kernels that it compiles are kept beside the candidate, not in the user's cache,
// where a child may not write.
void use_cache_of(const Context& context);

GateOutcome rejected(std::string reason);
GateOutcome not_done(std::string reason);
GateOutcome passed(std::string reason);

// The answer of a child is JSON with "verdict", "reason" and "figures".
std::string to_answer(const GateOutcome& outcome);
// A child that did not finish, or whose answer cannot be read, is a rejection with its reason.
GateOutcome outcome_of(const ChildResult& child, std::string_view gate);

}  // namespace octavo::evolve
