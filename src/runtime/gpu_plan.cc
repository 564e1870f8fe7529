#include "runtime/gpu_plan.h"

#include <array>
#include <mutex>

#include "attention/error.h"
#include "gpu/choose_sm80_forward.h"
#include "gpu/config_text.h"
#include "gpu/launch_sm80_forward.h"

namespace octavo {
namespace {

// One kernel per alignment of the rows. That of 16 bytes is loaded with the plan; a narrower one
// by the first run that needs it, which a CUDA graph capture must not be.
class GpuPlan final : public Plan::Impl {
 public:
  GpuPlan(const Problem& planned, Device on, const Gpu& gpu) : Impl(planned, on), gpu_(gpu) {}

  Status load() { return kernel(16).status(); }

  Explanation explain() const override {
    const ChosenSm80Forward chosen = choose_sm80_forward(problem, gpu_.info, 16);
    Explanation e;
    e.device = name(device);
    e.kernel = "sm80_forward";
    e.config = to_text(chosen.config);
    e.reason = chosen.reason;
    return e;
  }

  std::size_t workspace_bytes(const Problem& /*posed*/) const override { return 0; }

  Status run(const Problem& posed, const Arguments& arguments, Workspace /*workspace*/,
             Stream stream) const override {
    OCTAVO_RETURN_IF_ERROR(sm80_forward_serves(posed));
    const Result<const LoadedSm80Forward*> found = kernel(row_alignment(arguments));
    if (!found.ok()) return found.status();
    return launch_sm80_forward(gpu_, **found, posed, arguments, stream);
  }

 private:
  static constexpr std::array kAlignments = {1, 2, 4, 8, 16};

  Result<const LoadedSm80Forward*> kernel(int alignment) const {
    std::size_t slot = 0;
    while (kAlignments[slot] < alignment) ++slot;
    const std::lock_guard lock(mutex_);
    std::optional<LoadedSm80Forward>& loaded = kernels_[slot];
    if (!loaded) {
      const ChosenSm80Forward chosen = choose_sm80_forward(problem, gpu_.info, alignment);
      Result<LoadedSm80Forward> made = load_sm80_forward(gpu_, chosen.config);
      if (!made.ok()) return made.status();
      loaded = *made;
    }
    return &*loaded;
  }

  const Gpu& gpu_;
  mutable std::mutex mutex_;
  mutable std::array<std::optional<LoadedSm80Forward>, kAlignments.size()> kernels_;
};

}  // namespace

Result<std::shared_ptr<const Plan::Impl>> make_gpu_plan(const Problem& problem, Device device) {
  OCTAVO_RETURN_IF_ERROR(sm80_forward_serves(problem));
  const Result<const Gpu*> gpu = open_gpu(device.index);
  if (!gpu.ok()) return gpu.status();
  if ((*gpu)->info.arch < 80)
    return unsupported(
        "device", fmt::format("{} ({}, sm_{})", name(device), (*gpu)->info.name, (*gpu)->info.arch),
        "sm_80 and later");
  if ((problem.q == DType::e4m3 || problem.q == DType::e5m2) && (*gpu)->info.arch < 89)
    return unsupported("q dtype", fmt::format("{} on sm_{}", name(problem.q), (*gpu)->info.arch),
                       "FP8 from sm_89 on");
  auto made = std::make_shared<GpuPlan>(problem, device, **gpu);
  OCTAVO_RETURN_IF_ERROR(made->load());
  return std::shared_ptr<const Plan::Impl>(std::move(made));
}

}  // namespace octavo
