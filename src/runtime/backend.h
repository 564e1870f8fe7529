// A plan's inside: what every backend provides.
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
  // `run_problem`: the problem with the lengths of this run, whose arguments are null when it is
  // the plan's own. It follows from these and the plan alone: whoever has asked once may rely on
  // the answer.
  virtual std::size_t workspace_bytes(const Problem& run_problem,
                                      const Arguments* arguments) const = 0;
  // What a run could use at this moment, at least that: more threads may have come since the plan
  // was made.
  virtual std::size_t full_workspace_bytes(const Problem& run_problem,
                                           const Arguments* arguments) const {
    return workspace_bytes(run_problem, arguments);
  }
  virtual Status run(const Problem& run_problem, const Arguments& arguments, Workspace workspace,
                     Stream stream) const = 0;

  // In place of a run without a row: out_amax, where it is wanted, is 0.
  virtual Status run_empty(const Problem& run_problem, const Arguments& arguments,
                           Stream stream) const;

  // A run whose arguments differ from this thread's last ones in addresses alone, checked as far as
  // that takes; false where they do not, or no such run is kept.
  virtual bool run_again(const Arguments& /*arguments*/, Stream /*stream*/,
                         Status& /*status*/) const {
    return false;
  }

  const Problem problem;
  const Device device;
};

Result<std::shared_ptr<const Plan::Impl>> make_plan(const Problem& problem, Device device);

// Runs what is known to be the plan's problem, up to its lengths and batch.
Status run_validated(const Plan::Impl& plan, const Problem& run_problem, const Arguments& arguments,
                     Workspace workspace, Stream stream);

}  // namespace octavo
