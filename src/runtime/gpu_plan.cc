#include "runtime/gpu_plan.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "attention/error.h"
#include "gpu/choose_sm80_forward.h"
#include "gpu/config_text.h"
#include "gpu/kernel_family.h"
#include "gpu/launch_quantize.h"
#include "gpu/launch_sm80_forward.h"
#include "gpu/sm80_feasible.h"

namespace octavo {
namespace {

// One kernel per alignment of the rows. That of 16 bytes is loaded with the plan; a narrower one
// by the first run that needs it, which a CUDA graph capture must not be.
class GpuPlan final : public Plan::Impl {
 public:
  GpuPlan(const Problem& planned, Device on, const Gpu& gpu, std::optional<Sm80Forward> forced)
      : Impl(planned, on), gpu_(gpu), forced_(forced), quantizers_(gpu) {}

  Status load() {
    OCTAVO_RETURN_IF_ERROR(quantizers_.load(quantizers_of(problem, code_arch(), 16)));
    return kernel(16).status();
  }

  Explanation explain() const override {
    const ChosenSm80Forward chosen = choose(16);
    Explanation e;
    e.device = name(device);
    e.kernel = "sm80_forward";
    e.config = to_text(chosen.config);
    e.reason = chosen.reason;
    if (const auto loaded = kernel(16); loaded.ok() && !(*loaded)->note.empty()) {
      e.config = to_text((*loaded)->config);
      e.reason += "; " + (*loaded)->note;
    }
    e.reason += describe_quantizers(problem);
    e.workspace_bytes = workspace_bytes(problem, nullptr);
    return e;
  }

  std::size_t workspace_bytes(const Problem& posed, const Arguments* arguments) const override {
    return prepared_bytes(posed, arguments);
  }

  Status run(const Problem& posed, const Arguments& arguments, Workspace workspace,
             Stream stream) const override {
    OCTAVO_RETURN_IF_ERROR(sm80_forward_serves(posed));
    const PreparedCall call = prepare_call(posed, arguments, workspace.data, code_arch());
    const Result<const LoadedSm80Forward*> found = kernel(row_alignment(call.arguments));
    if (!found.ok()) return found.status();
    OCTAVO_RETURN_IF_ERROR(quantizers_.launch(call, stream));
    return launch_sm80_forward(gpu_, **found, call.problem, call.arguments, stream);
  }

 private:
  static constexpr std::array kAlignments = {1, 2, 4, 8, 16};

  int code_arch() const { return code_for(gpu_.info.arch).arch; }

  ChosenSm80Forward choose(int alignment) const {
    if (forced_) return {*forced_, "asked for"};
    return choose_sm80_forward(problem, gpu_.info, alignment);
  }

  Result<const LoadedSm80Forward*> kernel(int alignment) const {
    if (forced_ && alignment < forced_->load_bytes)
      return invalid("config.load_bytes", fmt::format("{}", forced_->load_bytes),
                     fmt::format("up to {}, the alignment of the rows", alignment));
    std::size_t slot = 0;
    while (kAlignments[slot] < alignment) ++slot;
    const std::lock_guard lock(mutex_);
    std::optional<LoadedSm80Forward>& loaded = kernels_[slot];
    if (!loaded) {
      const Result<LoadedSm80Forward> made =
          forced_ ? load_sm80_forward(gpu_, *forced_)
                  : load_nearest_sm80_forward(gpu_, choose(alignment).config);
      if (!made.ok()) return made.status();
      loaded = *made;
    }
    return &*loaded;
  }

  const Gpu& gpu_;
  const std::optional<Sm80Forward> forced_;
  mutable LoadedQuantizers quantizers_;
  mutable std::mutex mutex_;
  mutable std::array<std::optional<LoadedSm80Forward>, kAlignments.size()> kernels_;
};

// A configuration that somebody asks for must still fit the problem.
Result<Sm80Forward> forced_config(const Problem& problem, const GpuInfo& gpu,
                                  std::string_view text) {
  const Sm80Forward chosen = choose_sm80_forward(problem, gpu, 16).config;
  Sm80Forward defaults;
  defaults.arch = chosen.arch;
  defaults.element = chosen.element;
  defaults.out = chosen.out;
  defaults.head_dim = chosen.head_dim;
  defaults.load_bytes = chosen.load_bytes;
  defaults.k_row_scales = chosen.k_row_scales;
  const Result<Sm80Forward> config = parse_sm80_forward(text, defaults);
  if (!config.ok()) return config;
  OCTAVO_RETURN_IF_ERROR(feasible(*config, gpu.arch, gpu.smem_per_block_optin));
  if (config->arch != chosen.arch || config->element != chosen.element ||
      config->out != chosen.out || config->k_row_scales != chosen.k_row_scales ||
      config->head_dim < problem.head_dim)
    return invalid(
        "config", brief_text(*config),
        fmt::format("arch={},{} for this problem and chip", chosen.arch, brief_text(defaults)));
  return config;
}

Result<const Gpu*> gpu_for(const Problem& problem, Device device) {
  OCTAVO_RETURN_IF_ERROR(forced_kernel_family().status());
  OCTAVO_RETURN_IF_ERROR(sm80_forward_serves(problem));
  const Result<const Gpu*> gpu = open_gpu(device.index);
  if (!gpu.ok()) return gpu.status();
  const GpuInfo& info = (*gpu)->info;
  if (info.arch < 80)
    return unsupported("device", fmt::format("{} ({}, sm_{})", name(device), info.name, info.arch),
                       "sm_80 and later");
  const DType element = prepared_problem(problem).q;
  if ((element == DType::e4m3 || element == DType::e5m2) && info.arch < 89)
    return unsupported("q dtype", fmt::format("{} on sm_{}", name(element), info.arch),
                       "FP8 from sm_89 on");
  return gpu;
}

}  // namespace

Result<std::vector<KernelSource>> gpu_kernels(const Problem& problem, Device device,
                                              int row_alignment) {
  const Result<const Gpu*> gpu = gpu_for(problem, device);
  if (!gpu.ok()) return gpu.status();
  const GpuInfo& info = (*gpu)->info;
  std::vector<KernelSource> kernels;
  const auto add = [&kernels](const KernelSource& source) {
    if (std::find(kernels.begin(), kernels.end(), source) == kernels.end())
      kernels.push_back(source);
  };
  for (const int alignment : {16, row_alignment}) {
    add(kernel_source(choose_sm80_forward(problem, info, alignment).config,
                      code_for(info.arch).ptx));
    for (const KernelSource& source : quantizer_sources(problem, info, alignment)) add(source);
  }
  return kernels;
}

Result<std::shared_ptr<const Plan::Impl>> make_gpu_plan(const Problem& problem, Device device,
                                                        std::string_view config) {
  const Result<const Gpu*> gpu = gpu_for(problem, device);
  if (!gpu.ok()) return gpu.status();
  std::optional<Sm80Forward> forced;
  if (!config.empty()) {
    const Result<Sm80Forward> parsed = forced_config(problem, (*gpu)->info, config);
    if (!parsed.ok()) return parsed.status();
    forced = *parsed;
  }
  auto made = std::make_shared<GpuPlan>(problem, device, **gpu, forced);
  OCTAVO_RETURN_IF_ERROR(made->load());
  return std::shared_ptr<const Plan::Impl>(std::move(made));
}

}  // namespace octavo
