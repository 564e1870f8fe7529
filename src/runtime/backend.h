// The interface that every backend implements for a plan.
#pragma once

#include <cstddef>
#include <memory>

#include "octavo/octavo.hpp"

namespace octavo {

class Plan::Impl {
 public:
  Impl(const Problem& planned, Device on) : problem(planned), device(on) {}
  virtual ~Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  virtual Explanation explain() const = 0;
  // `run_problem` is the problem with the lengths of this run. `arguments` may be null if it is the
  // plan's own problem. The result depends only on these and the plan, so callers may cache it.
  virtual std::size_t workspace_bytes(const Problem& run_problem,
                                      const Arguments* arguments) const = 0;
  // The most that a run could use now, which is at least workspace_bytes(): the number of threads
  // may have grown since the plan was made.
  virtual std::size_t full_workspace_bytes(const Problem& run_problem,
                                           const Arguments* arguments) const {
    return workspace_bytes(run_problem, arguments);
  }
  virtual Status run(const Problem& run_problem, const Arguments& arguments, Workspace workspace,
                     Stream stream) const = 0;

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

  const Problem problem;
  const Device device;
};

// `problem` must be validated.
Result<std::shared_ptr<const Plan::Impl>> make_plan(const Problem& problem, Device device);

// Runs a problem that is known to match the plan except for lengths and batch, with a workspace
// that is known to be large enough.
Status run_validated(const Plan::Impl& plan, const Problem& run_problem, const Arguments& arguments,
                     Workspace workspace, Stream stream);

}  // namespace octavo
