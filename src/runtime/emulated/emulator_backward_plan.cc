// SPDX-License-Identifier: Apache-2.0
// Plans of the backward pass whose kernels run in the emulator.
#include "attention/backward_arguments.h"
#include "attention/validate.h"
#include "base/error.h"
#include "emulator/kernels/sm80_backward.h"
#include "gpu/backward/sm80_backward.h"
#include "gpu/jit/kernel_source.h"
#include "runtime/emulated/emulated_backward.h"
#include "runtime/emulated/emulated_gpu.h"
#include "runtime/plan/gpu_backward_plan.h"

namespace octavo {
namespace {

// The chosen kernel if it is compiled in; otherwise, of those that can replace it, the one with the
// least padding.
const emulator::EmulatedSm80Backward* compiled_in(const Sm80BackwardConfig& wanted,
                                                  const GpuInfo& chip) {
  if (const auto* const chosen = emulator::find_sm80_backward(wanted)) return chosen;
  const emulator::EmulatedSm80Backward* best = nullptr;
  for (const auto& kernel : emulator::sm80_backward_kernels()) {
    Sm80BackwardConfig c = kernel.config;
    c.arch = wanted.arch;
    const bool serves = c.pass == wanted.pass && c.element == wanted.element &&
                        c.load_bytes <= wanted.load_bytes && c.head_dim >= wanted.head_dim &&
                        includes(c.modifiers, wanted.modifiers) &&
                        any(c.modifiers) == any(wanted.modifiers) &&
                        feasible(c, chip.arch, chip.smem_per_block_optin).ok();
    if (serves && (best == nullptr || c.head_dim < best->config.head_dim)) best = &kernel;
  }
  return best;
}

class EmulatorBackwardPlan final : public BackwardPlan::Impl {
 public:
  EmulatorBackwardPlan(const Problem& planned, Device on, const GpuInfo& chip)
      : Impl(planned, on), chip_(chip) {}

  Result<ChosenSm80Backward> kernels(int alignment) const {
    ChosenSm80Backward chosen = choose_sm80_backward(problem, chip_, alignment);
    const auto* const dkv = compiled_in(chosen.dkv, chip_);
    const auto* const dq = compiled_in(chosen.dq, chip_);
    const auto* const dbias = chosen.dbias ? compiled_in(*chosen.dbias, chip_) : dq;
    if (dkv == nullptr || dq == nullptr || dbias == nullptr ||
        emulator::find_row_stats(chosen.row_stats) == nullptr)
      return unsupported(
          "problem", fmt::format("{} with rows aligned to {} bytes", describe(problem), alignment),
          "on the emulator the problems of its backward kernels");
    chosen.dkv = dkv->config;
    chosen.dq = dq->config;
    if (chosen.dbias) chosen.dbias = dbias->config;
    return chosen;
  }

  Explanation explain() const override {
    Explanation e;
    e.device = name(device);
    e.kernel = "sm80_backward";
    e.config = describe_sm80_backward(kernels(16).value());
    e.reason = fmt::format("the best of the emulator's kernels for sm_{}", chip_.arch);
    e.workspace_bytes = workspace_bytes(problem, nullptr);
    return e;
  }

  std::size_t workspace_bytes(const Problem& run_problem,
                              const BackwardArguments* /*arguments*/) const override {
    return row_stats_bytes(run_problem);
  }

  Status run(const Problem& run_problem, const BackwardArguments& arguments, Workspace workspace,
             Stream /*stream*/) const override {
    OCTAVO_RETURN_IF_ERROR(validate_lengths(forward_arguments(arguments)));
    OCTAVO_RETURN_IF_ERROR(check_bias_gradient(arguments));
    const Result<ChosenSm80Backward> chosen = kernels(row_alignment(arguments));
    if (!chosen.ok()) return chosen.status();
    return run_emulated_backward(*chosen, chip_, run_problem, arguments, workspace.data);
  }

 private:
  const GpuInfo& chip_;
};

}  // namespace

Result<std::shared_ptr<const BackwardPlan::Impl>> make_emulator_backward_plan(
    const Problem& problem, Device device) {
  const Result<const Gpu*> gpu = emulated_gpu(device);
  if (!gpu.ok()) return gpu.status();
  if (is_forced(KernelFamily::sm90))
    return no_other_family("for the backward pass in the emulator");
  auto made = std::make_shared<EmulatorBackwardPlan>(problem, device, (*gpu)->info);
  OCTAVO_RETURN_IF_ERROR(made->kernels(16).status());
  return std::shared_ptr<const BackwardPlan::Impl>(std::move(made));
}

}  // namespace octavo
