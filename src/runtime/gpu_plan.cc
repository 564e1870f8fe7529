#include "runtime/gpu_plan.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>

#include "attention/error.h"
#include "gpu/forward/forward_params.h"
#include "gpu/forward/sm80_forward.h"
#include "gpu/forward/sm90_forward.h"
#include "gpu/jit/config_text.h"
#include "gpu/jit/kernel_source.h"
#include "gpu/quantize/launch_quantize.h"

namespace octavo {
namespace {

// The caller's configuration, for one kernel family or the other.
struct Forced {
  std::optional<Sm80ForwardConfig> sm80;
  std::optional<Sm90ForwardConfig> sm90;
};

// Why the driver cannot launch Hopper kernels on a Hopper GPU; empty if it can.
std::string missing_driver_feature(const GpuInfo& gpu) {
  if (gpu.arch != 90 || gpu.tensor_maps) return "";
  return "; the driver has no cuTensorMapEncodeTiled, which Hopper kernels need";
}

// "B=1 ... f16 on sm_89", for error messages of the sm90 family.
std::string unserved(const Problem& problem, const GpuInfo& gpu) {
  return fmt::format("{} on sm_{}{}", describe(problem), gpu.arch, missing_driver_feature(gpu));
}

// Evaluated for every plan, because the environment may force a family.
bool takes_sm90(const Problem& problem, const GpuInfo& gpu) {
  return !is_forced(KernelFamily::sm80) && sm90_forward_serves(problem, gpu);
}

Sm90ForwardConfig without_pack_gqa(Sm90ForwardConfig config) {
  config.pack_gqa = false;
  return config;
}

// The sm80 family: one kernel per row alignment, loaded by the first run that needs it. That run
// must not be inside a CUDA graph capture.
class Sm80Kernels {
 public:
  Sm80Kernels(const Problem& problem, const Gpu& gpu, std::optional<Sm80ForwardConfig> forced)
      : problem_(problem), gpu_(gpu), forced_(forced) {}

  int code_arch() const { return code_for(gpu_.info.arch).arch; }

  ChosenSm80Forward choose(int alignment) const {
    if (forced_) return {*forced_, "asked for"};
    return choose_sm80_forward(problem_, gpu_.info, alignment);
  }

  Result<const LoadedSm80Forward*> get(int alignment) const {
    if (forced_ && alignment < forced_->load_bytes)
      return invalid("config.load_bytes", fmt::format("{}", forced_->load_bytes),
                     fmt::format("up to {}, the alignment of the rows", alignment));
    // In a forked child another thread of the parent may hold the lock, so check first.
    OCTAVO_RETURN_IF_ERROR(usable(gpu_));
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

 private:
  static constexpr std::array kAlignments = {1, 2, 4, 8, 16};

  const Problem& problem_;
  const Gpu& gpu_;
  const std::optional<Sm80ForwardConfig> forced_;
  mutable std::mutex mutex_;
  mutable std::array<std::optional<LoadedSm80Forward>, kAlignments.size()> kernels_;
};

// The Hopper kernel if it supports the problem and TMA can address the tensors, otherwise the sm80
// family. The kernels for 16-byte aligned rows are loaded with the plan.
class GpuPlan final : public Plan::Impl {
 public:
  GpuPlan(const Problem& planned, Device on, const Gpu& gpu, const Forced& forced)
      : Impl(planned, on),
        gpu_(gpu),
        forced_(forced),
        uses_sm90_(forced.sm90 || (!forced.sm80 && takes_sm90(problem, gpu.info))),
        only_sm90_(is_forced(KernelFamily::sm90)),
        sm80_(problem, gpu, forced.sm80),
        quantizers_(gpu) {}

  Status load() {
    if (!uses_sm90_) return load_sm80();
    ChosenSm90Forward chosen = choose_sm90();
    Result<LoadedSm90Forward> made = load_sm90_forward(gpu_, chosen.config);
    // Without a compiler, fall back to the shipped kernel without pack_gqa.
    const Sm90ForwardConfig plain = without_pack_gqa(chosen.config);
    if (!made.ok() && made.status().code() == ErrorCode::unsupported && !forced_.sm90 &&
        plain != chosen.config) {
      chosen.config = plain;
      chosen.reason += "; without pack_gqa, as there is no compiler";
      made = load_sm90_forward(gpu_, plain);
    }
    // If that is not shipped either, fall back to the sm80 family, which has a kernel for
    // everything.
    const bool may_be_another = !forced_.sm90 && !only_sm90_ && sm80_forward_reads(problem).ok();
    if (!made.ok() && made.status().code() == ErrorCode::unsupported && may_be_another)
      return load_sm80();
    if (!made.ok()) return made.status();
    const std::vector<QuantizeConfig> quantizers =
        quantizers_of(problem, sm80_.code_arch(), 16, v_layout(made->config));
    OCTAVO_RETURN_IF_ERROR(quantizers_.load(quantizers));
    prepares_ = sm90::is_8bit_qk(made->config) || !quantizers.empty();
    sm90_ = *made;
    sm90_->early_start = chosen.early_start;
    sm90_reason_ = chosen.reason;
    return {};
  }

  Explanation explain() const override {
    Explanation e;
    e.device = name(device);
    if (sm90_) {
      e.kernel = "sm90_forward";
      e.config = to_text(sm90_->config);
      e.reason = sm90_reason_;
      if (!sm90_->note.empty()) e.reason += "; " + sm90_->note;
      e.reason += describe_quantizers(problem, v_layout(sm90_->config),
                                      sm90_->config.scores == ScoreType::f16_fast);
      e.workspace_bytes = workspace_bytes(problem, nullptr);
      return e;
    }
    const ChosenSm80Forward chosen = sm80_.choose(16);
    e.kernel = "sm80_forward";
    e.config = to_text(chosen.config);
    e.reason = chosen.reason;
    if (const auto loaded = sm80_.get(16); loaded.ok() && !(*loaded)->note.empty()) {
      e.config = to_text((*loaded)->config);
      e.reason += "; " + (*loaded)->note;
    }
    if (uses_sm90_) e.reason += "; no Hopper kernel, as there is no compiler";
    e.reason += missing_driver_feature(gpu_.info);
    e.reason += describe_quantizers(problem);
    e.workspace_bytes = workspace_bytes(problem, nullptr);
    return e;
  }

  std::size_t workspace_bytes(const Problem& run_problem,
                              const Arguments* arguments) const override {
    // The strides and addresses of a run decide which family runs.
    const std::size_t sm80_bytes = prepared_bytes(run_problem, arguments);
    if (!sm90_) return sm80_bytes;
    return std::max(sm80_bytes, prepared_bytes(run_problem, arguments, v_layout(sm90_->config)));
  }

  Status run(const Problem& run_problem, const Arguments& arguments, Workspace workspace,
             Stream stream) const override {
    if (run_problem != problem) OCTAVO_RETURN_IF_ERROR(sm80_forward_serves(run_problem));
    if (sm90_ && prepares_) {
      const PreparedCall call = prepare_call(run_problem, arguments, workspace.data,
                                             sm80_.code_arch(), {}, v_layout(sm90_->config));
      if (sm90_forward_reaches(call.arguments)) {
        OCTAVO_RETURN_IF_ERROR(quantizers_.launch(call, stream));
        return launch_sm90_forward(gpu_, *sm90_, call.problem, call.arguments, stream);
      }
    } else if (sm90_ && sm90_forward_reaches(arguments)) {
      return repeated_.launch(gpu_, *sm90_, run_problem, arguments, stream);
    }
    OCTAVO_RETURN_IF_ERROR(sm80_forward_reads(run_problem));
    if (forced_.sm90)
      return invalid("config", "of sm90_forward",
                     "one of sm80_forward if strides or addresses are not multiples of 16 bytes");
    if (only_sm90_) return no_other_family("if strides or addresses are not multiples of 16 bytes");
    const PreparedCall call =
        prepare_call(run_problem, arguments, workspace.data, sm80_.code_arch());
    const Result<const LoadedSm80Forward*> found = sm80_.get(row_alignment(call.arguments));
    if (!found.ok()) return found.status();
    OCTAVO_RETURN_IF_ERROR(quantizers_.launch(call, stream));
    return launch_sm80_forward(gpu_, **found, call.problem, call.arguments, stream);
  }

  Status run_empty(const Problem& run_problem, const Arguments& a, Stream stream) const override {
    if (a.out_amax == nullptr) return {};
    const CurrentContext current(gpu_);
    OCTAVO_RETURN_IF_ERROR(current.status());
    return clear_amax(*gpu_.driver, a.out_amax, amax_floats(run_problem, a), stream);
  }

  bool run_again(const Arguments& arguments, Stream stream, Status& status) const override {
    return sm90_ && repeated_.launch_again(gpu_, arguments, stream, status);
  }

  Result<std::function<Status()>> bare_launch(const Problem& run_problem,
                                              const Arguments& arguments, Stream stream) const {
    if (!sm90_ || prepares_ || !sm90_forward_reaches(arguments)) return std::function<Status()>();
    const auto launch = std::make_shared<Sm90ForwardLaunch>();
    OCTAVO_RETURN_IF_ERROR(launch->prepare(gpu_, *sm90_, run_problem, arguments, stream));
    return std::function<Status()>([launch, &d = *gpu_.driver] { return launch->launch(d); });
  }

 private:
  Status load_sm80() {
    OCTAVO_RETURN_IF_ERROR(sm80_forward_reads(problem));
    OCTAVO_RETURN_IF_ERROR(quantizers_.load(quantizers_of(problem, sm80_.code_arch(), 16)));
    return sm80_.get(16).status();
  }

  ChosenSm90Forward choose_sm90() const {
    ChosenSm90Forward chosen = choose_sm90_forward(problem, gpu_.info);
    if (forced_.sm90) {
      chosen.config = *forced_.sm90;
      chosen.reason = "asked for";
    }
    return chosen;
  }

  const Gpu& gpu_;
  const Forced forced_;
  const bool uses_sm90_;
  const bool only_sm90_;
  std::optional<LoadedSm90Forward> sm90_;
  std::string sm90_reason_;
  bool prepares_ = false;  // quantizers may run before the Hopper kernel
  const RepeatedSm90Forward repeated_;
  const Sm80Kernels sm80_;
  mutable LoadedQuantizers quantizers_;
};

// The caller's configuration must still fit the problem.
Result<Sm80ForwardConfig> forced_sm80(const Problem& problem, const GpuInfo& gpu,
                                      std::string_view text) {
  const Sm80ForwardConfig chosen = choose_sm80_forward(problem, gpu, 16).config;
  Sm80ForwardConfig defaults;
  defaults.arch = chosen.arch;
  defaults.element = chosen.element;
  defaults.out = chosen.out;
  defaults.amax = chosen.amax;
  defaults.head_dim = chosen.head_dim;
  defaults.load_bytes = chosen.load_bytes;
  defaults.k_row_scales = chosen.k_row_scales;
  const Result<Sm80ForwardConfig> config = parse_sm80_forward(text, defaults);
  if (!config.ok()) return config;
  OCTAVO_RETURN_IF_ERROR(feasible(*config, gpu.arch, gpu.smem_per_block_optin));
  if (config->arch != chosen.arch || config->element != chosen.element ||
      config->out != chosen.out || config->amax != chosen.amax ||
      config->k_row_scales != chosen.k_row_scales || config->head_dim < problem.head_dim)
    return invalid(
        "config", brief_text(*config),
        fmt::format("arch={},{} for this problem and chip", chosen.arch, brief_text(defaults)));
  return config;
}

Result<Sm90ForwardConfig> forced_sm90(const Problem& problem, const GpuInfo& gpu,
                                      std::string_view text) {
  if (!sm90_forward_serves(problem, gpu))
    return invalid("config", "of sm90_forward",
                   fmt::format("one of sm80_forward for {}", unserved(problem, gpu)));
  const Sm90ForwardConfig chosen = choose_sm90_forward(problem, gpu).config;
  Sm90ForwardConfig defaults;
  defaults.element = chosen.element;
  defaults.v_element = chosen.v_element;
  defaults.out_element = chosen.out_element;
  defaults.k_scales = chosen.k_scales;
  defaults.amax = chosen.amax;
  defaults.head_dim = chosen.head_dim;
  if (sm90::is_8bit_qk(defaults)) {
    defaults.sum_rounded_p = chosen.sum_rounded_p;
    defaults.pv_columns = chosen.pv_columns;
    defaults.scores = chosen.scores;
  }
  const Result<Sm90ForwardConfig> config = parse_sm90_forward(text, defaults);
  if (!config.ok()) return config;
  OCTAVO_RETURN_IF_ERROR(feasible(*config, gpu.arch, gpu.smem_per_block_optin));
  // ScoreType is ordered: f32 supports every problem, and f16 every problem of f16_fast.
  if (config->element != chosen.element || config->v_element != chosen.v_element ||
      config->out_element != chosen.out_element || config->amax != chosen.amax ||
      config->k_scales != chosen.k_scales || config->scores > chosen.scores ||
      config->head_dim < problem.head_dim || (sm90::is_split_kv(*config) && problem.varlen))
    return invalid("config", brief_text(*config),
                   fmt::format("{} for this problem{}", brief_text(defaults),
                               problem.varlen ? ", with row_groups=0" : ""));
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
  if (is_forced(KernelFamily::sm90) && !sm90_forward_serves(problem, info))
    return no_other_family("for " + unserved(problem, info));
  if (!takes_sm90(problem, info)) OCTAVO_RETURN_IF_ERROR(sm80_forward_reads(problem));
  for (const auto& [what, element] :
       {std::pair{"q dtype", prepared_problem(problem).q}, {"out dtype", problem.out}})
    if ((element == DType::e4m3 || element == DType::e5m2) && info.arch < 89)
      return unsupported(what, fmt::format("{} on sm_{}", name(element), info.arch),
                         "FP8 from sm_89 on");
  return gpu;
}

}  // namespace

Result<std::function<Status()>> bare_launch(const Plan::Impl& plan, const Arguments& arguments,
                                            Stream stream) {
  const auto* const on_gpu = dynamic_cast<const GpuPlan*>(&plan);
  if (on_gpu == nullptr) return std::function<Status()>();
  const Result<Problem> run_problem = problem_of(arguments, plan.problem.options);
  if (!run_problem.ok()) return run_problem.status();
  return on_gpu->bare_launch(*run_problem, arguments, stream);
}

Result<std::vector<KernelSource>> gpu_kernels(const Problem& problem, Device device,
                                              int row_alignment) {
  const Result<const Gpu*> gpu = gpu_for(problem, device);
  if (!gpu.ok()) return gpu.status();
  const GpuInfo& info = (*gpu)->info;
  if (is_forced(KernelFamily::sm90) && row_alignment < 16)
    return no_other_family(fmt::format("for rows aligned to {} bytes", row_alignment));
  std::vector<KernelSource> kernels;
  const auto add = [&kernels](const KernelSource& source) {
    if (std::find(kernels.begin(), kernels.end(), source) == kernels.end())
      kernels.push_back(source);
  };
  for (const int alignment : {16, row_alignment}) {
    if (alignment < 16) OCTAVO_RETURN_IF_ERROR(sm80_forward_reads(problem));
    add(alignment == 16 && takes_sm90(problem, info)
            ? kernel_source(choose_sm90_forward(problem, info).config)
            : kernel_source(choose_sm80_forward(problem, info, alignment).config,
                            code_for(info.arch).ptx));
    const VLayout layout = alignment == 16 && takes_sm90(problem, info)
                               ? v_layout(choose_sm90_forward(problem, info).config)
                               : VLayout::rows;
    for (const KernelSource& source : quantizer_sources(problem, info, alignment, layout))
      add(source);
  }
  return kernels;
}

Result<std::shared_ptr<const Plan::Impl>> make_gpu_plan(const Problem& problem, Device device,
                                                        std::string_view config) {
  const Result<const Gpu*> gpu = gpu_for(problem, device);
  if (!gpu.ok()) return gpu.status();
  Forced forced;
  if (names_sm90_forward(config)) {
    const Result<Sm90ForwardConfig> parsed = forced_sm90(problem, (*gpu)->info, config);
    if (!parsed.ok()) return parsed.status();
    forced.sm90 = *parsed;
  } else if (!config.empty()) {
    const Result<Sm80ForwardConfig> parsed = forced_sm80(problem, (*gpu)->info, config);
    if (!parsed.ok()) return parsed.status();
    forced.sm80 = *parsed;
  }
  auto made = std::make_shared<GpuPlan>(problem, device, **gpu, forced);
  OCTAVO_RETURN_IF_ERROR(made->load());
  return std::shared_ptr<const Plan::Impl>(std::move(made));
}

}  // namespace octavo
