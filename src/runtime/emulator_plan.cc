#include "runtime/emulator_plan.h"

#include <atomic>

#include "attention/error.h"
#include "emulator/sm80_forward_table.h"
#include "gpu/choose_sm80_forward.h"
#include "gpu/config_text.h"
#include "gpu/launch_sm80_forward.h"
#include "gpu/prepare_operands.h"
#include "octavo/emulator.hpp"
#include "runtime/emulated_launch.h"

namespace octavo {
namespace {

// One word, so that setting and reading need no lock: the seed plus one, or 0 for none.
std::atomic<std::uint64_t> schedule = 0;

emulator::Settings current_settings() {
  emulator::Settings settings;
  if (const std::uint64_t seed = schedule; seed != 0) settings.seed = seed - 1;
  return settings;
}

Status no_kernel(const Problem& p, int alignment) {
  return unsupported(
      "problem", fmt::format("{} with rows aligned to {} bytes", describe(p), alignment),
      "on the emulator those that one of its kernels serves (octavo emulator kernels)");
}

class EmulatorPlan final : public Plan::Impl {
 public:
  using Plan::Impl::Impl;

  Explanation explain() const override {
    const emulator::EmulatedSm80Forward* const kernel = emulated_sm80_forward(problem, 16);
    Explanation e;
    e.device = name(device);
    e.kernel = "sm80_forward";
    e.config = to_text(kernel->config);
    e.reason = fmt::format("of the kernels compiled for the emulator, the one for {} SMs",
                           emulated_sms()) +
               describe_quantizers(problem);
    e.workspace_bytes = workspace_bytes(problem, nullptr);
    return e;
  }

  std::size_t workspace_bytes(const Problem& posed, const Arguments* arguments) const override {
    return prepared_bytes(posed, arguments);
  }

  Status run(const Problem& posed, const Arguments& arguments, Workspace workspace,
             Stream /*stream*/) const override {
    OCTAVO_RETURN_IF_ERROR(sm80_forward_serves(posed));
    const PreparedCall call =
        prepare_call(posed, arguments, workspace.data, emulator::kSm80Arch, emulated_config);
    const int alignment = row_alignment(call.arguments);
    const emulator::EmulatedSm80Forward* const kernel = emulated_sm80_forward(problem, alignment);
    if (kernel == nullptr) return no_kernel(posed, alignment);
    const emulator::Settings settings = current_settings();
    Status status;
    const auto judge = [&](const emulator::Machine& machine) {
      if (!machine.report().clean()) status = hazards(machine.report(), settings);
    };
    for (std::size_t i = 0; i < call.count && status.ok(); ++i) {
      const QuantizeLaunch& pass = call.launches[i];
      const auto head_dim = static_cast<int>(posed.head_dim);
      const emulator::EmulatedQuantize* const quantizer =
          emulator::find_quantize(pass.config, head_dim);
      if (quantizer == nullptr) return no_kernel(posed, row_alignment(arguments));
      run_emulated_quantizer(*quantizer, pass, settings, judge);
    }
    if (status.ok()) run_emulated(*kernel, call.problem, call.arguments, settings, judge);
    return status;
  }

 private:
  static Quantize emulated_config(const Quantize& chosen, std::int64_t head_dim) {
    const auto* const found = emulator::find_quantize(chosen, static_cast<int>(head_dim));
    return found != nullptr ? found->config : chosen;
  }

  static Status hazards(const emulator::Report& report, const emulator::Settings& settings) {
    return {ErrorCode::device_error,
            fmt::format(
                "The emulator found {} hazards ({}):\n{}", report.findings().size(),
                settings.seed ? fmt::format("schedule {}", *settings.seed) : std::string("in turn"),
                report.text())};
  }
};

}  // namespace

Result<std::shared_ptr<const Plan::Impl>> make_emulator_plan(const Problem& problem,
                                                             Device device) {
  OCTAVO_RETURN_IF_ERROR(sm80_forward_serves(problem));
  if (emulated_sm80_forward(problem, 16) == nullptr) return no_kernel(problem, 16);
  return std::shared_ptr<const Plan::Impl>(std::make_shared<EmulatorPlan>(problem, device));
}

std::string describe_emulator() {
  return fmt::format("sm_{} on the CPU, {} kernels",
                     emulator::sm80_forward_kernels()[0].config.arch, emulated_kernels().size());
}

bool has_emulator() { return true; }

void set_emulator_schedule(std::optional<std::uint64_t> seed) { schedule = seed ? *seed + 1 : 0; }

std::vector<EmulatedKernel> emulated_kernels() {
  std::vector<EmulatedKernel> kernels;
  for (const auto& kernel : emulator::sm80_forward_kernels())
    kernels.push_back({"sm80_forward", to_text(kernel.config), brief_text(kernel.config)});
  for (const auto& kernel : emulator::quantize_kernels())
    kernels.push_back({"quantize", to_text(kernel.config), brief_text(kernel.config)});
  return kernels;
}

}  // namespace octavo
