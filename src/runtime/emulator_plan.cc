#include "runtime/emulator_plan.h"

#include <atomic>

#include "attention/error.h"
#include "gpu/choose_sm80_forward.h"
#include "gpu/config_text.h"
#include "gpu/launch_sm80_forward.h"
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
    e.reason =
        fmt::format("of the kernels compiled for the emulator, the one for {} SMs", emulated_sms());
    return e;
  }

  std::size_t workspace_bytes(const Problem& /*posed*/) const override { return 0; }

  Status run(const Problem& posed, const Arguments& arguments, Workspace /*workspace*/,
             Stream /*stream*/) const override {
    OCTAVO_RETURN_IF_ERROR(sm80_forward_serves(posed));
    const int alignment = row_alignment(arguments);
    const emulator::EmulatedSm80Forward* const kernel = emulated_sm80_forward(problem, alignment);
    if (kernel == nullptr) return no_kernel(posed, alignment);
    Status status;
    const emulator::Settings settings = current_settings();
    run_emulated(*kernel, posed, arguments, settings, [&](const emulator::Machine& machine) {
      if (!machine.report().clean())
        status = {
            ErrorCode::device_error,
            fmt::format(
                "The emulator found {} hazards ({}):\n{}", machine.report().findings().size(),
                settings.seed ? fmt::format("schedule {}", *settings.seed) : std::string("in turn"),
                machine.report().text())};
    });
    return status;
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
                     emulator::sm80_forward_kernels()[0].config.arch,
                     emulator::sm80_forward_kernels().size());
}

bool has_emulator() { return true; }

void set_emulator_schedule(std::optional<std::uint64_t> seed) { schedule = seed ? *seed + 1 : 0; }

std::vector<EmulatedKernel> emulated_kernels() {
  std::vector<EmulatedKernel> kernels;
  for (const auto& kernel : emulator::sm80_forward_kernels())
    kernels.push_back({"sm80_forward", to_text(kernel.config), brief_text(kernel.config)});
  return kernels;
}

}  // namespace octavo
