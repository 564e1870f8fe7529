// SPDX-License-Identifier: Apache-2.0
// Makes a plan for a problem, and runs it.
#include <algorithm>

#include "attention/operand_scales.h"
#include "attention/validate.h"
#include "base/error.h"
#include "gpu/driver/driver.h"
#include "octavo/kernels.hpp"
#include "octavo/octavo.hpp"
#include "runtime/plan/automatic_plan.h"
#include "runtime/plan/backend.h"
#include "runtime/plan/cpu_plan.h"
#include "runtime/plan/gpu_plan.h"

namespace octavo {
namespace {

bool has_queries(const Problem& p) { return p.batch != 0 && p.heads_q != 0 && p.seqlen_q != 0; }

}  // namespace

const Problem& Plan::problem() const { return impl_->problem; }

Explanation Plan::explain() const { return impl_->explain(); }

std::size_t Plan::workspace_bytes() const {
  return impl_->workspace_bytes(impl_->problem, nullptr);
}

std::size_t Plan::workspace_bytes(const Arguments& arguments) const {
  const Result<std::size_t> bytes = without_exceptions([&]() -> Result<std::size_t> {
    return impl_->workspace_bytes(problem_of(arguments, impl_->problem.options).value(),
                                  &arguments);
  });
  return bytes.ok() ? *bytes : 0;
}

Status Plan::run(const Arguments& arguments, Workspace workspace, Stream stream) const {
  return without_exceptions([&]() -> Status {
    if (Status status; impl_->run_again(arguments, workspace, stream, status)) return status;
    const Result<Problem> run_problem = problem_of(arguments, impl_->problem.options);
    if (!run_problem.ok()) return run_problem.status();
    if (*run_problem != impl_->problem)
      OCTAVO_RETURN_IF_ERROR(validate_run(impl_->problem, *run_problem));
    const std::size_t needed =
        has_queries(*run_problem) ? impl_->workspace_bytes(*run_problem, &arguments) : 0;
    if (workspace.bytes < needed || (workspace.data == nullptr && needed > 0))
      return invalid("workspace",
                     fmt::format("{} bytes at {}", workspace.bytes,
                                 workspace.data == nullptr ? "null" : "a pointer"),
                     fmt::format("at least {} bytes for this problem", needed));
    return run_validated(*impl_, *run_problem, arguments, workspace, stream);
  });
}

// The default, for devices that use host memory.
Status Plan::Impl::run_empty(const Problem& run_problem, const Arguments& a,
                             Stream /*stream*/) const {
  std::fill_n(a.out_amax, amax_floats(run_problem, a), 0.0f);
  return {};
}

Status run_validated(const Plan::Impl& plan, const Problem& run_problem, const Arguments& arguments,
                     Workspace workspace, Stream stream) {
  if (!has_queries(run_problem)) return plan.run_empty(run_problem, arguments, stream);
  return plan.run(run_problem, arguments, workspace, stream);
}

Result<std::shared_ptr<const Plan::Impl>> make_plan(const Problem& problem, Device device) {
  if (problem.options.precision == Precision::automatic)
    return make_automatic_plan(problem, device);
  switch (device.kind) {
    case Device::Kind::cpu:
      return make_cpu_plan(problem, device);
    case Device::Kind::cuda:
    case Device::Kind::emulator:
      return make_gpu_plan(problem, device);
  }
  return unsupported("device", "of an unknown kind", "cpu, cuda, emulator");
}

Result<Plan> plan(const Problem& problem, Device device) {
  return without_exceptions([&]() -> Result<Plan> {
    OCTAVO_RETURN_IF_ERROR(validate(problem));
    Result<std::shared_ptr<const Plan::Impl>> made = make_plan(problem, device);
    if (!made.ok()) return made.status();
    return Plan(*std::move(made));
  });
}

Result<Explanation> explain(const Problem& problem, Device device) {
  return without_exceptions([&]() -> Result<Explanation> {
    const Result<Plan> made = plan(problem, device);
    if (!made.ok()) return made.status();
    return made->explain();
  });
}

Result<Explanation> explain_on_known_gpu(const Problem& problem, std::string_view gpu) {
  return without_exceptions([&]() -> Result<Explanation> {
    OCTAVO_RETURN_IF_ERROR(validate(problem));
    const Result<GpuInfo> info = gpu_named(gpu);
    if (!info.ok()) return info.status();
    const auto explain = [&info](const Problem& p) { return explain_without_gpu(p, *info); };
    return problem.options.precision == Precision::automatic ? explain_automatic(problem, explain)
                                                             : explain(problem);
  });
}

}  // namespace octavo
