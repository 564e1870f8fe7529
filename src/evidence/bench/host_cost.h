// The host time of a call.
#pragma once

#include "octavo/evidence.hpp"
#include "runtime/plan/backend.h"

namespace octavo::evidence {

// For a plan on a GPU whose arguments are there.
Result<HostCost> host_cost(const Plan::Impl& plan, const Arguments& arguments, Workspace workspace);

}  // namespace octavo::evidence
