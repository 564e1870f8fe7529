// SPDX-License-Identifier: Apache-2.0
// Measures the host time of a call.
#pragma once

#include "octavo/evidence.hpp"
#include "runtime/plan/backend.h"

namespace octavo::evidence {

// The plan must be on a GPU, and `arguments` in that GPU's memory.
Result<HostCost> host_cost(const Plan::Impl& plan, const Arguments& arguments, Workspace workspace);

}  // namespace octavo::evidence
