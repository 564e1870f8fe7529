// SPDX-License-Identifier: Apache-2.0
// What plans of both passes have in common, on every backend.
#pragma once

#include <cstddef>

#include "octavo/octavo.hpp"

namespace octavo {

// PassArguments: Arguments of the forward pass, or BackwardArguments.
template <class PassArguments>
class PlanBase {
 public:
  PlanBase(const Problem& planned, Device on) : problem(planned), device(on) {}
  virtual ~PlanBase() = default;
  PlanBase(const PlanBase&) = delete;
  PlanBase& operator=(const PlanBase&) = delete;

  virtual Explanation explain() const = 0;
  // `run_problem` is the problem with the lengths of this run. `arguments` may be null if it is the
  // plan's own problem. The result depends only on these and the plan, so callers may cache it.
  virtual std::size_t workspace_bytes(const Problem& run_problem,
                                      const PassArguments* arguments) const = 0;
  // The most that a run could use now, which is at least workspace_bytes(): the number of threads
  // may have grown since the plan was made.
  virtual std::size_t full_workspace_bytes(const Problem& run_problem,
                                           const PassArguments* arguments) const {
    return workspace_bytes(run_problem, arguments);
  }
  virtual Status run(const Problem& run_problem, const PassArguments& arguments,
                     Workspace workspace, Stream stream) const = 0;

  const Problem problem;
  const Device device;
};

}  // namespace octavo
