#include "runtime/emulator_plan.h"

#include <algorithm>
#include <atomic>

#include "attention/error.h"
#include "attention/validate.h"
#include "gpu/forward/sm80_forward.h"
#include "gpu/forward/sm90_forward.h"
#include "gpu/jit/config_text.h"
#include "gpu/jit/kernel_source.h"
#include "gpu/quantize/prepare_operands.h"
#include "octavo/emulator.hpp"
#include "runtime/emulated_launch.h"
#include "runtime/emulator_run.h"

namespace octavo {
namespace {

// The seed plus one, or 0 for none: one atomic word needs no lock.
std::atomic<std::uint64_t> schedule = 0;

Status no_kernel(const Problem& p, int alignment) {
  return unsupported("problem",
                     fmt::format("{} with rows aligned to {} bytes", describe(p), alignment),
                     "on the emulator the problems of its kernels (octavo emulator kernels)");
}

// As a GPU plan, with the compiled-in kernels: the Hopper kernel if one supports the problem and
// TMA can address its tensors, otherwise the sm80 family.
class EmulatorPlan final : public Plan::Impl {
 public:
  EmulatorPlan(const Problem& planned, Device on, const GpuInfo& chip)
      : Impl(planned, on),
        chip_(chip),
        sm90_(is_forced(KernelFamily::sm80) ? nullptr : emulated_sm90_forward(problem, chip)),
        only_sm90_(is_forced(KernelFamily::sm90)) {}

  Status serves() const {
    if (only_sm90_ && sm90_ == nullptr)
      return no_other_family(fmt::format("for {} on sm_{}", describe(problem), chip_.arch));
    if (sm90_ == nullptr)
      if (const Status reads = sm80_forward_reads(problem); !reads.ok())
        return sm90_forward_serves(problem, chip_) ? no_kernel(problem, 16) : reads;
    const bool any = sm90_ != nullptr || emulated_sm80_forward(problem, chip_, 16) != nullptr;
    return any ? Status() : no_kernel(problem, 16);
  }

  Explanation explain() const override {
    Explanation e;
    e.device = name(device);
    e.kernel = sm90_ != nullptr ? "sm90_forward" : "sm80_forward";
    e.config = sm90_ != nullptr ? to_text(sm90_->config)
                                : to_text(emulated_sm80_forward(problem, chip_, 16)->config);
    e.reason = fmt::format("the best of the emulator's kernels for {} SMs of sm_{}", chip_.sms,
                           chip_.arch) +
               describe_quantizers(problem, layout(),
                                   sm90_ != nullptr && sm90_->config.scores == ScoreType::f16_fast);
    if (sm90_ != nullptr && choose_sm90_forward(problem, chip_).early_start)
      e.reason += "; launched early";
    e.workspace_bytes = workspace_bytes(problem, nullptr);
    return e;
  }

  std::size_t workspace_bytes(const Problem& run_problem,
                              const Arguments* arguments) const override {
    return std::max(prepared_bytes(run_problem, arguments, VLayout::rows, true),
                    prepared_bytes(run_problem, arguments, layout(), true));
  }

  Status run(const Problem& run_problem, const Arguments& arguments, Workspace workspace,
             Stream /*stream*/) const override {
    OCTAVO_RETURN_IF_ERROR(sm80_forward_serves(run_problem));
    OCTAVO_RETURN_IF_ERROR(validate_cu_seqlens(arguments));
    const emulator::Settings settings = emulator_settings();
    Status found;
    const auto judge = [&](const emulator::Machine& machine) {
      if (!machine.report().clean()) found = emulator_hazards(machine.report(), settings);
    };
    const auto quantize = [&](const PreparedCall& call) {
      for (std::size_t i = 0; i < call.count && found.ok(); ++i) {
        const QuantizeLaunch& pass = call.launches[i];
        const emulator::EmulatedQuantize* const quantizer =
            emulator::find_quantize(pass.config, static_cast<int>(run_problem.head_dim));
        if (quantizer == nullptr) return no_kernel(run_problem, row_alignment(arguments));
        run_emulated_quantizer(*quantizer, chip_, pass, settings, judge);
      }
      return Status();
    };
    if (sm90_ != nullptr) {
      const PreparedCall call = prepare_call(run_problem, arguments, workspace.data, chip_.arch,
                                             emulated_quantize, layout());
      if (sm90_forward_reaches(call.arguments)) {
        OCTAVO_RETURN_IF_ERROR(quantize(call));
        if (found.ok())
          OCTAVO_RETURN_IF_ERROR(
              run_emulated(*sm90_, chip_, call.problem, call.arguments, settings, judge));
        return found;
      }
    }
    OCTAVO_RETURN_IF_ERROR(sm80_forward_reads(run_problem));
    if (only_sm90_) return no_other_family("if strides or addresses are not multiples of 16 bytes");
    const PreparedCall call =
        prepare_call(run_problem, arguments, workspace.data, chip_.arch, emulated_quantize);
    const int alignment = row_alignment(call.arguments);
    const auto* const kernel = emulated_sm80_forward(problem, chip_, alignment);
    if (kernel == nullptr) return no_kernel(run_problem, alignment);
    OCTAVO_RETURN_IF_ERROR(quantize(call));
    if (found.ok())
      OCTAVO_RETURN_IF_ERROR(
          run_emulated(*kernel, chip_, call.problem, call.arguments, settings, judge));
    return found;
  }

 private:
  VLayout layout() const { return sm90_ != nullptr ? v_layout(sm90_->config) : VLayout::rows; }

  const GpuInfo& chip_;
  const emulator::EmulatedSm90Forward* const sm90_;
  const bool only_sm90_;
};

}  // namespace

emulator::Settings emulator_settings() {
  emulator::Settings settings;
  if (const std::uint64_t seed = schedule; seed != 0) settings.seed = seed - 1;
  return settings;
}

Status emulator_hazards(const emulator::Report& report, const emulator::Settings& settings) {
  return {ErrorCode::device_error,
          fmt::format(
              "The emulator found {} hazards ({}):\n{}", report.findings().size(),
              settings.seed ? fmt::format("schedule {}", *settings.seed) : std::string("in turn"),
              report.text())};
}

Result<std::shared_ptr<const Plan::Impl>> make_emulator_plan(const Problem& problem,
                                                             Device device) {
  OCTAVO_RETURN_IF_ERROR(forced_kernel_family().status());
  OCTAVO_RETURN_IF_ERROR(sm80_forward_serves(problem));
  const GpuInfo* const chip = emulated_chip(device);
  if (chip == nullptr) return unsupported("device", name(device), "emulator, emulator:90");
  auto made = std::make_shared<EmulatorPlan>(problem, device, *chip);
  OCTAVO_RETURN_IF_ERROR(made->serves());
  return std::shared_ptr<const Plan::Impl>(std::move(made));
}

std::string describe_emulator(Device device) {
  const GpuInfo& chip = *emulated_chip(device);
  return fmt::format(
      "sm_{} on the CPU, {} SMs, {} kernels", chip.arch, chip.sms,
      emulated_kernels().size() - (chip.arch == 90 ? 0 : emulator::sm90_forward_kernels().size()));
}

bool has_emulator() { return true; }

void set_emulator_schedule(std::optional<std::uint64_t> seed) { schedule = seed ? *seed + 1 : 0; }

std::vector<EmulatedKernel> emulated_kernels() {
  std::vector<EmulatedKernel> kernels;
  for (const auto& kernel : emulator::sm80_forward_kernels())
    kernels.push_back({"sm80_forward", to_text(kernel.config), brief_text(kernel.config)});
  for (const auto& kernel : emulator::sm90_forward_kernels())
    kernels.push_back({"sm90_forward", to_text(kernel.config), brief_text(kernel.config)});
  for (const auto& kernel : emulator::quantize_kernels())
    kernels.push_back({"quantize", to_text(kernel.config), brief_text(kernel.config)});
  return kernels;
}

}  // namespace octavo
