// The check run with the library exchangeable, so that tests can put faulty ones in its place.
#pragma once

#include <functional>
#include <vector>

#include "evidence/cases.h"
#include "octavo/evidence.hpp"

namespace octavo::evidence {

// Computes arguments.out and arguments.lse.
using Runner = std::function<Status(const Arguments&, const Options&)>;

// plan() and Plan::run() on the device, in a workspace of exactly the bytes asked for, guarded.
Runner library_runner(Device device);

Result<CheckReport> check_cases(const CheckOptions& options, const std::vector<Case>& cases,
                                const Runner& runner);

}  // namespace octavo::evidence
