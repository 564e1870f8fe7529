// SPDX-License-Identifier: Apache-2.0
// The interface that every backend implements for a plan of the backward pass.
//
// run() is called for problems of every size. Without query rows it sets dk and dv to zero, and
// without keys dq. Without a batch it writes nothing.
#pragma once

#include <memory>

#include "octavo/octavo.hpp"
#include "runtime/plan/plan_base.h"

namespace octavo {

class BackwardPlan::Impl : public PlanBase<BackwardArguments> {
 public:
  using PlanBase::PlanBase;
};

Result<std::shared_ptr<const BackwardPlan::Impl>> make_backward_plan(const Problem& problem,
                                                                     Device device);

}  // namespace octavo
