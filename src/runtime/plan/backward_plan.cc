// SPDX-License-Identifier: Apache-2.0
// Plans of the backward pass: the CPU's, the choice of the backend, and the one-call form.
#include "runtime/plan/backward_plan.h"

#include <algorithm>

#include "attention/validate.h"
#include "base/error.h"
#include "cpu/attention.h"
#include "cpu/backward.h"
#include "numeric/fork_safe.h"
#include "runtime/plan/gpu_backward_plan.h"
#include "runtime/plan/plan_cache.h"

namespace octavo {
namespace {

class CpuBackwardPlan final : public BackwardPlan::Impl {
 public:
  using BackwardPlan::Impl::Impl;

  Explanation explain() const override {
    Explanation e;
    e.device = name(device);
    e.kernel = "cpu_backward";
    e.config = cpu::describe_backward_config(problem, threads_);
    e.reason = "the CPU backend has one backward kernel for every problem";
    e.workspace_bytes = workspace_bytes(problem, nullptr);
    return e;
  }
  std::size_t workspace_bytes(const Problem& run_problem,
                              const BackwardArguments* arguments) const override {
    return cpu::backward_workspace_bytes(slicing_, run_problem, arguments, threads_);
  }
  std::size_t full_workspace_bytes(const Problem& run_problem,
                                   const BackwardArguments* arguments) const override {
    return cpu::backward_workspace_bytes(slicing_, run_problem, arguments,
                                         std::max(threads_, cpu::thread_count()));
  }
  Status run(const Problem& run_problem, const BackwardArguments& arguments, Workspace workspace,
             Stream /*stream*/) const override {
    return cpu::attention_backward(slicing_, run_problem, arguments, workspace);
  }

 private:
  const cpu::BackwardSlicing slicing_ = cpu::backward_slicing(problem);
  // The workspace is sized for this many threads. The thread count may change between calls, but
  // the workspace size must not.
  const int threads_ = cpu::thread_count();
};

// Runs a problem that is known to match the plan except for lengths and batch.
Status run_backward(const BackwardPlan::Impl& plan, const Problem& run_problem,
                    const BackwardArguments& arguments, Workspace workspace, Stream stream) {
  const std::size_t needed = plan.workspace_bytes(run_problem, &arguments);
  if (workspace.bytes < needed || (workspace.data == nullptr && needed > 0))
    return invalid("workspace",
                   fmt::format("{} bytes at {}", workspace.bytes,
                               workspace.data == nullptr ? "null" : "a pointer"),
                   fmt::format("at least {} bytes for this problem", needed));
  return plan.run(run_problem, arguments, workspace, stream);
}

constinit PerProcess<SharedPlans<BackwardPlan::Impl>> shared_backward_plans;

// This thread's plans, which need no lock.
PlanCache<BackwardPlan::Impl>& thread_backward_plans() {
  constexpr std::size_t kPlans = 8;
  thread_local PlanCache<BackwardPlan::Impl> cache(kPlans);
  return cache;
}

}  // namespace

const Problem& BackwardPlan::problem() const { return impl_->problem; }

Explanation BackwardPlan::explain() const { return impl_->explain(); }

std::size_t BackwardPlan::workspace_bytes() const {
  return impl_->workspace_bytes(impl_->problem, nullptr);
}

std::size_t BackwardPlan::workspace_bytes(const BackwardArguments& arguments) const {
  const Result<std::size_t> bytes = without_exceptions([&]() -> Result<std::size_t> {
    return impl_->workspace_bytes(problem_of(arguments, impl_->problem.options).value(),
                                  &arguments);
  });
  return bytes.ok() ? *bytes : 0;
}

Status BackwardPlan::run(const BackwardArguments& arguments, Workspace workspace,
                         Stream stream) const {
  return without_exceptions([&]() -> Status {
    const Result<Problem> run_problem = problem_of(arguments, impl_->problem.options);
    if (!run_problem.ok()) return run_problem.status();
    if (*run_problem != impl_->problem)
      OCTAVO_RETURN_IF_ERROR(validate_run(impl_->problem, *run_problem));
    return run_backward(*impl_, *run_problem, arguments, workspace, stream);
  });
}

Result<std::shared_ptr<const BackwardPlan::Impl>> make_backward_plan(const Problem& problem,
                                                                     Device device) {
  OCTAVO_RETURN_IF_ERROR(validate_backward(problem));
  switch (device.kind) {
    case Device::Kind::cpu:
      return std::shared_ptr<const BackwardPlan::Impl>(
          std::make_shared<CpuBackwardPlan>(problem, device));
    case Device::Kind::cuda:
    case Device::Kind::emulator:
      return make_gpu_backward_plan(problem, device);
  }
  return unsupported("device", "of an unknown kind", "cpu, cuda, emulator");
}

Result<BackwardPlan> plan_backward(const Problem& problem, Device device) {
  return without_exceptions([&]() -> Result<BackwardPlan> {
    Result<std::shared_ptr<const BackwardPlan::Impl>> made = make_backward_plan(problem, device);
    if (!made.ok()) return made.status();
    return BackwardPlan(*std::move(made));
  });
}

Result<Explanation> explain_backward(const Problem& problem, Device device) {
  return without_exceptions([&]() -> Result<Explanation> {
    const Result<BackwardPlan> made = plan_backward(problem, device);
    if (!made.ok()) return made.status();
    return made->explain();
  });
}

Status attention_backward(const BackwardArguments& arguments, const Options& options, Device device,
                          Stream stream) {
  return without_exceptions([&]() -> Status {
    const Result<Problem> problem = problem_of(arguments, options);
    if (!problem.ok()) return problem.status();
    const Result<const BackwardPlan::Impl*> made = plan_for(
        *problem, device, thread_backward_plans(), shared_backward_plans.get(), make_backward_plan);
    if (!made.ok()) return made.status();
    const BackwardPlan::Impl& plan = **made;
    const Result<Workspace> workspace = thread_workspaces().at_least(
        device, stream, plan.full_workspace_bytes(*problem, &arguments));
    if (!workspace.ok()) return workspace.status();
    return run_backward(plan, *problem, arguments, *workspace, stream);
  });
}

}  // namespace octavo
