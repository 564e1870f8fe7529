// SPDX-License-Identifier: Apache-2.0
// Judges the result of a case: makes every check, and compares each value with its bound.
#pragma once

#include <string>
#include <vector>

#include "evidence/cases/cases.h"
#include "evidence/cases/inputs.h"
#include "evidence/oracle/oracle.h"

namespace octavo::evidence {

struct Verdict {
  double total_max = 0;
  double total_rmse = 0;
  double kernel_max = 0;
  double bound_ratio = 0;             // largest error over its bound
  std::vector<std::string> failures;  // "gate: value, bound", without the case's name
  std::string not_run;                // why the device does not serve the case; empty: it was run
};

// Judges inputs.out and inputs.lse after a run on `kind` that followed poison_outputs().
Verdict judge(const Case& c, const Inputs& inputs, const Truth& truth, Device::Kind kind);

}  // namespace octavo::evidence
