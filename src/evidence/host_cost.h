// What a call costs the host.
#pragma once

#include "octavo/evidence.hpp"
#include "runtime/backend.h"

namespace octavo::evidence {

// Of a plan on a GPU, whose arguments are there.
Result<HostCost> host_cost(const Plan::Impl& plan, const Arguments& arguments, Workspace workspace);

}  // namespace octavo::evidence
