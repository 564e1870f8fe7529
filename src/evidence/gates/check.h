// SPDX-License-Identifier: Apache-2.0
// The check, with a replaceable library and oracle, so that tests can substitute faulty ones.
#pragma once

#include <string>
#include <vector>

#include "evidence/cases/cases.h"
#include "evidence/cases/runner.h"
#include "evidence/oracle/oracle.h"
#include "octavo/evidence.hpp"

namespace octavo::evidence {

// The oracle of a check. An oracle other than the CPU's is compared with the CPU's on part of the
// cases.
struct CheckOracle {
  Oracle oracle = cpu_oracle;
  std::string name = "cpu";
  bool is_cpu() const { return name == "cpu"; }
};

Result<CheckReport> check_cases(const CheckOptions& options, const std::vector<Case>& cases,
                                const Runner& runner, const CheckOracle& oracle = {});
// The same, and each result must agree with that of `emulator`, which rounds where the kernel does:
// within 2e-3 plus a step of its type. Outputs above 1 are compared relative to the largest.
inline constexpr double kEmulatedDifference = 2e-3;
Result<CheckReport> check_against_emulator(const CheckOptions& options,
                                           const std::vector<Case>& cases, const Runner& runner,
                                           const Runner& emulator, const CheckOracle& oracle = {});
// The same, with one thread per runner.
Result<CheckReport> check_cases(const CheckOptions& options, const std::vector<Case>& cases,
                                const std::vector<Runner>& runners, const CheckOracle& oracle);

// The cases of the requested precision, about as many as requested, spread over the suite.
std::vector<Case> chosen_cases(const CheckOptions& options, const std::vector<Case>& suite);

}  // namespace octavo::evidence
