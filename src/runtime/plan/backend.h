// SPDX-License-Identifier: Apache-2.0
// The interface that every backend implements for a plan of the forward pass.
#pragma once

#include <memory>

#include "octavo/octavo.hpp"
#include "runtime/plan/plan_base.h"

namespace octavo {

class Plan::Impl : public PlanBase<Arguments> {
 public:
  using PlanBase::PlanBase;

  // Replaces run() if there are no query rows: sets out_amax to 0 if it is requested.
  virtual Status run_empty(const Problem& run_problem, const Arguments& arguments,
                           Stream stream) const;

  // Repeats this thread's last run if only addresses have changed, and checks only the addresses.
  // Returns false if anything else has changed, the workspace is too small, or the plan remembers
  // no run.
  virtual bool run_again(const Arguments& /*arguments*/, Workspace /*workspace*/, Stream /*stream*/,
                         Status& /*status*/) const {
    return false;
  }
};

// `problem` must be validated.
Result<std::shared_ptr<const Plan::Impl>> make_plan(const Problem& problem, Device device);

// Runs a problem that is known to match the plan except for lengths and batch, with a workspace
// that is known to be large enough.
Status run_validated(const Plan::Impl& plan, const Problem& run_problem, const Arguments& arguments,
                     Workspace workspace, Stream stream);

}  // namespace octavo
