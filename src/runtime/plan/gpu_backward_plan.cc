// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/gpu_backward_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <utility>

#include "base/error.h"
#include "gpu/backward/sm80_backward.h"
#include "gpu/backward/sm90_backward.h"
#include "gpu/jit/config_text.h"
#include "gpu/jit/kernel_source.h"

namespace octavo {
namespace {

// The Hopper kernels if they support the problem and TMA can address the tensors, otherwise the
// sm80 family, with one set of kernels per row alignment, loaded by the first run that needs it.
class GpuBackwardPlan final : public BackwardPlan::Impl {
 public:
  GpuBackwardPlan(const Problem& planned, Device on, const Gpu& gpu)
      : Impl(planned, on),
        gpu_(gpu),
        uses_sm90_(!is_forced(KernelFamily::sm80) && sm90_backward_serves(problem, gpu.info)),
        only_sm90_(is_forced(KernelFamily::sm90)) {}

  Status load() {
    if (!uses_sm90_) {
      if (only_sm90_) return no_sm90();
      return sm80(kFullAlignment).status();
    }
    const Result<LoadedSm90Backward> made =
        load_sm90_backward(gpu_, problem, choose_sm90_backward(problem, gpu_.info.sms));
    if (!made.ok()) return made.status();
    sm90_ = *made;
    return {};
  }

  Explanation explain() const override {
    Explanation e;
    e.device = fmt::format("{} ({})", name(device), gpu_.info.name);
    if (uses_sm90_) {
      e.kernel = "sm90_backward";
      e.config = to_text(sm90_->config.config);
      e.reason = sm90_->config.reason + sm90_->shared.note;
    } else {
      const ChosenSm80Backward chosen = choose_sm80_backward(problem, gpu_.info, kFullAlignment);
      e.kernel = "sm80_backward";
      e.config = to_text(chosen.dkv);
      e.reason = chosen.reason;
    }
    e.workspace_bytes = workspace_bytes(problem, nullptr);
    return e;
  }

  std::size_t workspace_bytes(const Problem& run_problem,
                              const BackwardArguments* arguments) const override {
    if (!uses_sm90_) return row_stats_bytes(run_problem);
    const std::int64_t tokens =
        arguments == nullptr ? run_problem.batch * run_problem.seqlen_q : arguments->q.shape[2];
    return sm90_backward_workspace(run_problem, tokens, sm90_->config).total;
  }

  Status run(const Problem& run_problem, const BackwardArguments& arguments, Workspace workspace,
             Stream stream) const override {
    OCTAVO_RETURN_IF_ERROR(check_bias_gradient(arguments));
    OCTAVO_RETURN_IF_ERROR(usable(gpu_));
    if (uses_sm90_ && sm90_backward_reaches(arguments))
      return launch_sm90_backward(gpu_, *sm90_, run_problem, arguments, workspace.data, stream);
    if (only_sm90_) return no_sm90();
    const Result<const LoadedSm80Backward*> kernels = sm80(row_alignment(arguments));
    if (!kernels.ok()) return kernels.status();
    return launch_sm80_backward(gpu_, **kernels, run_problem, arguments, workspace.data, stream);
  }

 private:
  static constexpr int kFullAlignment = 16;
  static constexpr std::array kAlignments = {2, 4, 8, kFullAlignment};

  Status no_sm90() const {
    return no_other_family(
        fmt::format("for the backward pass of {} on sm_{}", describe(problem), gpu_.info.arch));
  }

  Result<const LoadedSm80Backward*> sm80(int alignment) const {
    OCTAVO_RETURN_IF_ERROR(usable(gpu_));
    std::size_t slot = 0;
    while (kAlignments[slot] < std::min(alignment, kFullAlignment)) ++slot;
    const std::lock_guard lock(mutex_);
    std::optional<LoadedSm80Backward>& loaded = sm80_[slot];
    if (!loaded) {
      Result<LoadedSm80Backward> made = load_sm80_backward(
          gpu_, problem, choose_sm80_backward(problem, gpu_.info, kAlignments[slot]));
      if (!made.ok()) return made.status();
      loaded = std::move(*made);
    }
    return &*loaded;
  }

  const Gpu& gpu_;
  const bool uses_sm90_;
  const bool only_sm90_;
  std::optional<LoadedSm90Backward> sm90_;
  mutable std::mutex mutex_;
  mutable std::array<std::optional<LoadedSm80Backward>, kAlignments.size()> sm80_;
};

}  // namespace

Result<std::shared_ptr<const BackwardPlan::Impl>> make_gpu_backward_plan(const Problem& problem,
                                                                         Device device) {
  OCTAVO_RETURN_IF_ERROR(forced_kernel_family().status());
  OCTAVO_RETURN_IF_ERROR(sm80_backward_serves(problem));
  if (device.kind == Device::Kind::emulator) return make_emulator_backward_plan(problem, device);
  const Result<const Gpu*> gpu = open_gpu(device.index);
  if (!gpu.ok()) return gpu.status();
  const GpuInfo& info = (*gpu)->info;
  if (info.arch < 80)
    return unsupported("device", fmt::format("{} ({}, sm_{})", name(device), info.name, info.arch),
                       "sm_80 and later");
  auto made = std::make_shared<GpuBackwardPlan>(problem, device, **gpu);
  OCTAVO_RETURN_IF_ERROR(made->load());
  return std::shared_ptr<const BackwardPlan::Impl>(std::move(made));
}

}  // namespace octavo
