// SPDX-License-Identifier: Apache-2.0
// attention(): plans are cached by problem and device, workspaces by thread and stream.
#include "attention/mask.h"
#include "attention/sequence.h"
#include "base/error.h"
#include "numeric/fork_safe.h"
#include "octavo/octavo.hpp"
#include "runtime/plan/backend.h"
#include "runtime/plan/plan_cache.h"

namespace octavo {
namespace {

constinit PerProcess<SharedPlans<Plan::Impl>> shared_plans;

// This thread's plans, which need no lock.
PlanCache<Plan::Impl>& thread_plans() {
  constexpr std::size_t kPlans = 8;
  thread_local PlanCache<Plan::Impl> cache(kPlans);
  return cache;
}

// Runs the first plan of this thread whose last run differs only in addresses.
bool run_again(const Arguments& arguments, const Options& options, Device device, Stream stream,
               Status& status) {
  if (changes_scores(arguments) || is_padded(arguments) || is_paged(arguments)) return false;
  const Workspace workspace = thread_workspaces().last(device, stream);
  for (const auto& plan : thread_plans().entries())
    if (plan->device == device && plan->problem.options == options &&
        plan->run_again(arguments, workspace, stream, status))
      return true;
  return false;
}

}  // namespace

ThreadWorkspaces& thread_workspaces() {
  thread_local ThreadWorkspaces workspaces;
  return workspaces;
}

Status attention(const Arguments& arguments, const Options& options, Device device, Stream stream) {
  return without_exceptions([&]() -> Status {
    if (Status status; run_again(arguments, options, device, stream, status)) return status;
    const Result<Problem> problem = problem_of(arguments, options);
    if (!problem.ok()) return problem.status();
    const Result<const Plan::Impl*> made =
        plan_for(*problem, device, thread_plans(), shared_plans.get(), make_plan);
    if (!made.ok()) return made.status();
    const Plan::Impl& plan = **made;
    const Result<Workspace> workspace = thread_workspaces().at_least(
        device, stream, plan.full_workspace_bytes(*problem, &arguments));
    if (!workspace.ok()) return workspace.status();
    return run_validated(plan, *problem, arguments, *workspace, stream);
  });
}

}  // namespace octavo
