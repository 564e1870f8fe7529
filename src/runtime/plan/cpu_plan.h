// SPDX-License-Identifier: Apache-2.0
// Plans that run on the CPU backend.
#pragma once

#include <memory>

#include "runtime/plan/backend.h"

namespace octavo {

std::shared_ptr<const Plan::Impl> make_cpu_plan(const Problem& problem, Device device);

}  // namespace octavo
