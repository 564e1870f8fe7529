// The check run with library and oracle exchangeable, so that tests can put faulty ones in their
// place.
#pragma once

#include <string>
#include <vector>

#include "evidence/cases.h"
#include "evidence/oracle.h"
#include "evidence/runner.h"
#include "octavo/evidence.hpp"

namespace octavo::evidence {

// Who says what is right. An oracle that is not the CPU's is held against it on part of the cases.
struct CheckOracle {
  Oracle oracle = cpu_oracle;
  std::string name = "cpu";
  bool is_cpu() const { return name == "cpu"; }
};

Result<CheckReport> check_cases(const CheckOptions& options, const std::vector<Case>& cases,
                                const Runner& runner, const CheckOracle& oracle = {});
// The same, and each result must lie within 2e-3, beside a step of its type, of what `emulator`,
// which rounds where the kernel does, makes of the case; outputs beyond 1 count relative to the
// largest.
inline constexpr double kEmulatedDifference = 2e-3;
Result<CheckReport> check_against_emulator(const CheckOptions& options,
                                           const std::vector<Case>& cases, const Runner& runner,
                                           const Runner& emulator, const CheckOracle& oracle = {});
// The same, with a thread for each runner.
Result<CheckReport> check_cases(const CheckOptions& options, const std::vector<Case>& cases,
                                const std::vector<Runner>& runners, const CheckOracle& oracle);

// Those of the precision asked for, and about as many as asked for, spread over them.
std::vector<Case> chosen_cases(const CheckOptions& options, const std::vector<Case>& suite);

}  // namespace octavo::evidence
