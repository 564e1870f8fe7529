// The interface that every backend implements for a plan of the backward pass.
#pragma once

#include <cstddef>
#include <memory>

#include "octavo/octavo.hpp"

namespace octavo {

class BackwardPlan::Impl {
 public:
  Impl(const Problem& planned, Device on) : problem(planned), device(on) {}
  virtual ~Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  virtual Explanation explain() const = 0;
  // `run_problem` is the problem with the lengths of this run; `arguments` is null if it is the
  // plan's own problem. The result depends only on these and the plan, so callers may cache it.
  virtual std::size_t workspace_bytes(const Problem& run_problem,
                                      const BackwardArguments* arguments) const = 0;
  // The most that a run could use now, at least workspace_bytes(): the number of threads may have
  // grown since the plan was made.
  virtual std::size_t full_workspace_bytes(const Problem& run_problem,
                                           const BackwardArguments* arguments) const {
    return workspace_bytes(run_problem, arguments);
  }
  // Called for problems of every size. Without query rows it sets dk and dv to zero, and without
  // keys dq. Without a batch it writes nothing.
  virtual Status run(const Problem& run_problem, const BackwardArguments& arguments,
                     Workspace workspace, Stream stream) const = 0;

  const Problem problem;
  const Device device;
};

Result<std::shared_ptr<const BackwardPlan::Impl>> make_backward_plan(const Problem& problem,
                                                                     Device device);

}  // namespace octavo
