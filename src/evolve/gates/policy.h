// SPDX-License-Identifier: Apache-2.0
// What a candidate may change. The rules are the first gate: they cost nothing, and name what they
// refuse. They are not what makes a result right. A text rule can be written around, and the gates
// after it judge what the kernel computes; docs/evolve.md says which gate stops what.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "evolve/gates/patch.h"

namespace octavo::evolve {

struct PolicyFinding {
  std::string rule;    // its name
  std::string reason;  // one sentence: where, and why it is refused
};

struct PolicyRule {
  const char* name;
  const char* reason;  // why the rule exists, one sentence
};
// All rules, in the order in which they are applied.
std::span<const PolicyRule> policy_rules();

// The first rule that a patch breaks.
std::optional<PolicyFinding> judge_patch(const Patched& patched);

// The rule that a configuration breaks: it must declare the formats of `base` and be as precise.
// Both are texts of the family's configuration. A configuration that cannot be read is a finding.
std::optional<PolicyFinding> judge_config(std::string_view kernel, std::string_view base,
                                          std::string_view config);

}  // namespace octavo::evolve
