// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/gpu_plan.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>

#include "attention/validate.h"
#include "base/error.h"
#include "config/shared_parts.h"
#include "gpu/decode/decode.h"
#include "gpu/forward/forward_params.h"
#include "gpu/forward/sm80_forward.h"
#include "gpu/forward/sm90_forward.h"
#include "gpu/jit/config_text.h"
#include "gpu/jit/kernel_source.h"
#include "gpu/jit/load_function.h"
#include "gpu/quantize/launch_quantize.h"
#include "runtime/emulated/emulated_gpu.h"

namespace octavo {
namespace {

// A configuration that the caller forces, of one of the kernel families.
struct Forced {
  std::optional<DecodeConfig> decode;
  std::optional<Sm80ForwardConfig> sm80;
  std::optional<Sm90ForwardConfig> sm90;
};

// Why the driver cannot launch Hopper kernels on a Hopper GPU; empty if it can.
std::string missing_driver_feature(const GpuInfo& gpu) {
  if (gpu.arch != 90 || gpu.tensor_maps) return "";
  return "; the driver has no cuTensorMapEncodeTiled, which Hopper kernels need";
}

// "B=1 ... f16 on sm_89", for error messages of the sm90 family.
std::string on_chip(const Problem& problem, const GpuInfo& gpu) {
  return fmt::format("{} on sm_{}", describe(problem), gpu.arch);
}
std::string unserved(const Problem& problem, const GpuInfo& gpu) {
  return on_chip(problem, gpu) + missing_driver_feature(gpu);
}

// Evaluated for every plan, because the environment may force a family.
bool uses_sm90_family(const Resolved& resolved, const GpuInfo& gpu) {
  return !is_forced(KernelFamily::sm80) && sm90_forward_supports(resolved, gpu);
}

// No other kernel reads a paged cache or a draft tree.
bool needs_decode_family(const Problem& problem) { return problem.paged || problem.draft_tree; }

bool uses_decode_family(const Problem& problem, const GpuInfo& gpu) {
  if (is_forced(KernelFamily::decode) || needs_decode_family(problem)) return true;
  return !is_forced(KernelFamily::sm80) && !is_forced(KernelFamily::sm90) &&
         decode_supports(problem, gpu) && decode_is_best(problem, gpu);
}

std::string margin_note(const Problem& problem, const GpuInfo& gpu, bool persistent) {
  const std::int64_t margin = problem.options.sm_margin;
  if (margin == 0) return "";
  if (!persistent) return "; sm_margin has no effect on one CTA for each tile";
  return fmt::format("; {} of {} SMs are left free", margin, gpu.sms);
}

Status no_kernel(const Problem& p, int alignment) {
  return unsupported("problem",
                     fmt::format("{} with rows aligned to {} bytes", describe(p), alignment),
                     "on the emulator the problems of its kernels (octavo emulator kernels)");
}

Sm90ForwardConfig without_pack_gqa(Sm90ForwardConfig config) {
  config.pack_gqa = false;
  return config;
}

// The sm80 family: one kernel per row alignment, loaded by the first run that needs it. That run
// must not be inside a CUDA graph capture.
class Sm80Kernels {
 public:
  Sm80Kernels(const Resolved& resolved, const Gpu& gpu, std::optional<Sm80ForwardConfig> forced)
      : resolved_(resolved), gpu_(gpu), forced_(forced) {}
  ~Sm80Kernels() {
    for (auto& kernel : kernels_) delete kernel.load();
  }
  Sm80Kernels(const Sm80Kernels&) = delete;
  Sm80Kernels& operator=(const Sm80Kernels&) = delete;

  int code_arch() const { return code_for(gpu_.info.arch).arch; }

  ChosenSm80Forward choose(int alignment) const {
    if (forced_) return {*forced_, "asked for"};
    return choose_sm80_forward(resolved_, gpu_.info, alignment);
  }

  Result<const LoadedSm80Forward*> get(int alignment) const {
    if (forced_ && alignment < forced_->load_bytes)
      return invalid("config.load_bytes", fmt::format("{}", forced_->load_bytes),
                     fmt::format("up to {}, the alignment of the rows", alignment));
    OCTAVO_RETURN_IF_ERROR(usable(gpu_));
    std::size_t slot = 0;
    while (kAlignments[slot] < alignment) ++slot;
    // Without a lock, which a forked child might find taken: of two threads that load at once, one
    // discards its result.
    const LoadedSm80Forward* loaded = kernels_[slot].load(std::memory_order_acquire);
    if (loaded != nullptr) return loaded;
    Result<LoadedSm80Forward> made = load(alignment);
    if (!made.ok()) return made.status();
    auto mine = std::make_unique<const LoadedSm80Forward>(*std::move(made));
    if (kernels_[slot].compare_exchange_strong(loaded, mine.get())) return mine.release();
    return loaded;
  }

 private:
  static constexpr std::array kAlignments = {1, 2, 4, 8, 16};

  Result<LoadedSm80Forward> load(int alignment) const {
    const Sm80ForwardConfig chosen = choose(alignment).config;
    if (gpu_.is_emulated()) {
      const std::optional<Sm80ForwardConfig> nearest =
          gpu_.kernels->nearest(chosen, resolved_.kernel_problem);
      if (!nearest) return no_kernel(resolved_.run_problem, alignment);
      return load_sm80_forward(gpu_, *nearest);
    }
    return forced_ ? load_sm80_forward(gpu_, *forced_) : load_nearest_sm80_forward(gpu_, chosen);
  }

  const Resolved& resolved_;
  const Gpu& gpu_;
  const std::optional<Sm80ForwardConfig> forced_;
  mutable std::array<std::atomic<const LoadedSm80Forward*>, kAlignments.size()> kernels_{};
};

// A run, resolved twice: with V by rows, which sm80 kernels read and from which the sm90
// configuration is chosen, and with the V layout of that configuration. The strides and addresses
// of the run decide which kernel family runs.
struct ResolvedRun {
  Resolved v_by_rows, for_sm90;
  std::size_t workspace_bytes = 0;
};

// The numbers of tokens of a varlen batch, on which the size of converted operands depends.
struct Tokens {
  std::int64_t q = 0, kv = 0;
  bool operator==(const Tokens&) const = default;
};
Tokens tokens_of(const Problem& p, const Arguments* a) {
  if (!p.varlen) return {};
  if (a == nullptr) return {p.batch * p.seqlen_q, p.batch * p.seqlen_kv};
  return {a->q.shape[2], a->k.shape[2]};
}

// The shapes of a thread's last run of a plan, if they are not the plan's own.
struct ThreadRun {
  std::uint64_t plan = 0;  // 0: empty
  Problem run_problem;
  Tokens tokens;
  ResolvedRun resolved;
};
ThreadRun& thread_run(std::uint64_t plan) {
  constexpr std::size_t kSlots = 4;  // two plans that share a slot evict each other
  thread_local std::array<ThreadRun, kSlots> slots;
  return slots[plan % kSlots];
}

// A plan on a GPU. It runs the decode kernel for few queries over many keys; otherwise the Hopper
// kernel if that supports the problem and TMA can address the tensors; otherwise an sm80 kernel.
// The kernels for 16-byte aligned rows are loaded with the plan. The driver is CUDA's or the
// emulated one.
class GpuPlan final : public Plan::Impl {
 public:
  GpuPlan(const Resolved& planned, Device on, const Gpu& gpu, const Forced& forced)
      : Impl(planned.run_problem, on),
        gpu_(gpu),
        forced_(forced),
        uses_decode_(forced.decode || (!forced.sm80 && !forced.sm90 &&
                                       uses_decode_family(planned.run_problem, gpu.info))),
        uses_sm90_(forced.sm90 || (!forced.sm80 && uses_sm90_family(planned, gpu.info))),
        only_sm90_(is_forced(KernelFamily::sm90)),
        planned_{planned, planned, planned.workspace_bytes},
        sm80_(planned_.v_by_rows, gpu, forced.sm80),
        quantizers_(gpu) {}
  ~GpuPlan() override { delete without_score_tiles_.load(); }

  Status load() {
    if (uses_decode_) {
      const Status status = load_decode_kernel();
      // Without a compiler the forward kernels serve decoding problems too.
      const bool must =
          forced_.decode || is_forced(KernelFamily::decode) || needs_decode_family(problem);
      if (status.ok() || must || status.code() != ErrorCode::unsupported) return status;
    }
    if (!uses_sm90_) return load_sm80();
    ChosenSm90Forward chosen = choose_sm90();
    Result<LoadedSm90Forward> made = load_sm90(chosen.config);
    // Without a compiler, fall back to the shipped kernel without pack_gqa.
    const Sm90ForwardConfig plain = without_pack_gqa(chosen.config);
    if (!made.ok() && made.status().code() == ErrorCode::unsupported && !forced_.sm90 &&
        plain != chosen.config) {
      chosen.reason += "; without pack_gqa, as there is no compiler";
      made = load_sm90(plain);
    }
    // If that is not shipped either, fall back to the sm80 family, which has a kernel for
    // everything.
    const bool may_be_another =
        !forced_.sm90 && !only_sm90_ && sm80_forward_supports(planned_.v_by_rows).ok();
    if (!made.ok() && made.status().code() == ErrorCode::unsupported && may_be_another)
      return load_sm80();
    if (!made.ok()) return made.status();
    sm90_ = *std::move(made);
    sm90_->early_start = chosen.early_start;
    sm90_reason_ = chosen.reason;
    Result<ResolvedRun> resolved = resolve_run(problem, nullptr);
    if (!resolved.ok()) return resolved.status();
    planned_ = *std::move(resolved);
    return {};
  }

  Explanation explain() const override {
    Explanation e;
    e.device = name(device);
    e.workspace_bytes = planned_.workspace_bytes;
    if (decode_) {
      e.kernel = "decode";
      e.config = to_text(decode_->config);
      e.reason = decode_reason_;
      if (!decode_->note.empty()) e.reason += "; " + decode_->note;
      e.reason += margin_note(problem, gpu_.info, true);
      return e;
    }
    if (sm90_) {
      e.kernel = "sm90_forward";
      e.config = to_text(sm90_->config);
      e.reason = sm90_reason_;
      if (!sm90_->note.empty()) e.reason += "; " + sm90_->note;
      e.reason +=
          describe_quantizers(planned_.for_sm90, sm90_->config.scores == ScoreType::f16_fast);
      e.reason +=
          margin_note(problem, gpu_.info,
                      sm90_forward_is_persistent(planned_.for_sm90.kernel_problem, sm90_->config));
      return e;
    }
    const ChosenSm80Forward chosen = sm80_.choose(16);
    e.kernel = "sm80_forward";
    e.config = to_text(chosen.config);
    e.reason = gpu_.is_emulated() ? gpu_.kernels->reason() : chosen.reason;
    if (const auto loaded = sm80_.get(16); loaded.ok()) {
      e.config = to_text((*loaded)->config);
      if (!(*loaded)->note.empty()) e.reason += "; " + (*loaded)->note;
    }
    if (uses_sm90_)
      e.reason += gpu_.is_emulated() ? "; the emulator has no Hopper kernel for the problem"
                                     : "; no Hopper kernel, as there is no compiler";
    e.reason += missing_driver_feature(gpu_.info);
    e.reason += describe_quantizers(planned_.v_by_rows);
    e.reason += margin_note(problem, gpu_.info, chosen.config.persistent);
    return e;
  }

  std::size_t workspace_bytes(const Problem& run_problem,
                              const Arguments* arguments) const override {
    const Result<const ResolvedRun*> run = resolved(run_problem, arguments);
    return run.ok() ? (*run)->workspace_bytes : 0;
  }

  Status run(const Problem& run_problem, const Arguments& arguments, Workspace workspace,
             Stream stream) const override {
    const Result<const ResolvedRun*> found = resolved(run_problem, &arguments);
    if (!found.ok()) return found.status();
    const ResolvedRun& run = **found;
    // Only the emulator can read the arrays.
    if (gpu_.is_emulated()) OCTAVO_RETURN_IF_ERROR(validate_lengths(arguments));
    if (decode_ && decode_supports(run_problem, gpu_.info) && decode_can_address(arguments))
      return launch_decode(gpu_, *decode_, run_problem, arguments, workspace, stream);
    if (needs_decode_family(run_problem) || forced_.decode || is_forced(KernelFamily::decode))
      return unsupported("strides or addresses", "not multiples of 16 bytes, or rows 4 GB apart",
                         "rows of q, k, v and out that are aligned to 16 bytes, in the decode "
                         "kernel");
    if (sm90_) {
      std::optional<PreparedCall> call;
      if (run.for_sm90.converts()) call = prepare(run.for_sm90, arguments, workspace);
      const Result<const LoadedSm90Forward*> kernel = sm90_for(arguments);
      if (kernel.ok() && sm90_forward_can_address(call ? call->arguments : arguments))
        return repeated_.launch(quantizers_, **kernel, run.for_sm90, arguments,
                                call ? &*call : nullptr, run.workspace_bytes, stream);
      if (!kernel.ok() && kernel.status().code() != ErrorCode::unsupported) return kernel.status();
    }
    OCTAVO_RETURN_IF_ERROR(sm80_forward_supports(run.v_by_rows));
    if (forced_.sm90)
      return invalid("config", "of sm90_forward",
                     "one of sm80_forward if strides or addresses are not multiples of 16 bytes");
    if (only_sm90_) return no_other_family("if strides or addresses are not multiples of 16 bytes");
    const PreparedCall call = prepare(run.v_by_rows, arguments, workspace);
    const Result<const LoadedSm80Forward*> kernel = sm80_.get(row_alignment(call.arguments));
    if (!kernel.ok()) return kernel.status();
    OCTAVO_RETURN_IF_ERROR(quantizers_.launch(call, stream));
    return launch_sm80_forward(gpu_, **kernel, run.v_by_rows.kernel_problem, call.arguments,
                               stream);
  }

  Status run_empty(const Problem& run_problem, const Arguments& a, Stream stream) const override {
    if (a.out_amax == nullptr) return {};
    const CurrentContext current(gpu_);
    OCTAVO_RETURN_IF_ERROR(current.status());
    return clear_amax(*gpu_.driver, a.out_amax, amax_floats(run_problem, a), stream);
  }

  bool run_again(const Arguments& arguments, Workspace workspace, Stream stream,
                 Status& status) const override {
    // The emulator checks cu_seqlens, whose values may have changed.
    if (!sm90_ || (gpu_.is_emulated() && problem.varlen)) return false;
    return repeated_.launch_again(gpu_, arguments, workspace, stream, status);
  }

  Result<std::function<Status()>> bare_launch(const Problem& run_problem,
                                              const Arguments& arguments, Stream stream) const {
    const Result<const ResolvedRun*> run = resolved(run_problem, &arguments);
    if (!run.ok()) return run.status();
    const Resolved& sm90 = (*run)->for_sm90;
    if (!sm90_ || sm90.converts() || !sm90_forward_can_address(arguments))
      return std::function<Status()>();
    const Result<const LoadedSm90Forward*> kernel = sm90_for(arguments);
    if (!kernel.ok()) return kernel.status();
    const auto launch = std::make_shared<Sm90ForwardLaunch>();
    OCTAVO_RETURN_IF_ERROR(
        launch->prepare(gpu_, **kernel, sm90.kernel_problem, sm90.order, arguments, stream));
    return std::function<Status()>([launch, &gpu = gpu_, p = sm90.kernel_problem, arguments] {
      return launch->launch(gpu, p, arguments);
    });
  }

 private:
  Status load_decode_kernel() {
    ChosenDecode chosen = choose_decode(problem, gpu_.info);
    if (forced_.decode) chosen = {*forced_.decode, "asked for"};
    if (gpu_.is_emulated()) {
      const std::optional<DecodeConfig> nearest = gpu_.kernels->nearest(chosen.config, problem);
      if (!nearest) return no_kernel(problem, 16);
      chosen = {*nearest, gpu_.kernels->reason()};
    }
    Result<LoadedDecode> made = load_decode(gpu_, chosen.config);
    if (!made.ok()) return made.status();
    // Tensors whose rows are not aligned need the sm80 family, and these may need quantizers.
    OCTAVO_RETURN_IF_ERROR(load_quantizers(planned_.v_by_rows));
    decode_ = *std::move(made);
    decode_reason_ = chosen.reason;
    Result<ResolvedRun> resolved = resolve_run(problem, nullptr);
    if (!resolved.ok()) return resolved.status();
    planned_ = *std::move(resolved);
    return {};
  }

  Status load_sm80() {
    OCTAVO_RETURN_IF_ERROR(sm80_forward_supports(planned_.v_by_rows));
    OCTAVO_RETURN_IF_ERROR(load_quantizers(planned_.v_by_rows));
    OCTAVO_RETURN_IF_ERROR(sm80_.get(16).status());
    Result<ResolvedRun> resolved = resolve_run(problem, nullptr);
    if (!resolved.ok()) return resolved.status();
    planned_ = *std::move(resolved);
    return {};
  }

  ChosenSm90Forward choose_sm90() const {
    ChosenSm90Forward chosen = choose_sm90_forward(planned_.v_by_rows, gpu_.info);
    if (gpu_.is_emulated())
      chosen.reason = gpu_.kernels->reason() + (chosen.early_start ? "; launched early" : "");
    if (forced_.sm90) {
      chosen.config = *forced_.sm90;
      chosen.reason = "asked for";
    }
    return chosen;
  }

  // The plan's Hopper kernel, or, if TMA cannot load tiles of this call's bias and mask, the one
  // whose threads load their elements. The first call that needs it loads it, without a lock, as
  // Sm80Kernels does.
  Result<const LoadedSm90Forward*> sm90_for(const Arguments& arguments) const {
    if (!sm90_->config.modifiers.score_tiles || sm90_forward_has_score_tiles(arguments))
      return &*sm90_;
    const LoadedSm90Forward* loaded = without_score_tiles_.load(std::memory_order_acquire);
    if (loaded != nullptr) return loaded;
    OCTAVO_RETURN_IF_ERROR(usable(gpu_));
    Sm90ForwardConfig config = sm90_->config;
    config.modifiers.score_tiles = false;
    if (gpu_.is_emulated()) {
      const auto nearest = gpu_.kernels->nearest(config, planned_.for_sm90.kernel_problem);
      if (!nearest) return no_kernel(problem, 16);
      config = *nearest;
    }
    Result<LoadedSm90Forward> made = load_sm90_forward(gpu_, config);
    if (!made.ok()) return made.status();
    auto mine = std::make_unique<LoadedSm90Forward>(*std::move(made));
    mine->early_start = sm90_->early_start;
    if (without_score_tiles_.compare_exchange_strong(loaded, mine.get())) return mine.release();
    return loaded;
  }

  // Loads the forward kernel and the quantizers that it needs.
  Result<LoadedSm90Forward> load_sm90(Sm90ForwardConfig config) {
    if (gpu_.is_emulated()) {
      const std::optional<Sm90ForwardConfig> nearest =
          gpu_.kernels->nearest(config, planned_.v_by_rows.kernel_problem);
      if (!nearest) return no_kernel(problem, 16);
      config = *nearest;
    }
    Result<LoadedSm90Forward> made = load_sm90_forward(gpu_, config);
    if (!made.ok()) return made;
    const Result<Resolved> resolved = resolve_layout(problem, nullptr, v_layout(config));
    if (!resolved.ok()) return resolved.status();
    OCTAVO_RETURN_IF_ERROR(load_quantizers(*resolved));
    return made;
  }

  Status load_quantizers(const Resolved& resolved) {
    std::vector<QuantizeConfig> configs = quantizers_of(resolved, sm80_.code_arch(), 16);
    if (gpu_.is_emulated())
      for (QuantizeConfig& config : configs) {
        const std::optional<QuantizeConfig> nearest =
            gpu_.kernels->nearest(config, problem.head_dim);
        if (!nearest) return no_kernel(problem, 16);
        config = *nearest;
      }
    return quantizers_.load(configs);
  }

  PreparedCall prepare(const Resolved& resolved, const Arguments& arguments,
                       Workspace workspace) const {
    const int arch = sm80_.code_arch();
    if (!gpu_.is_emulated()) return prepare_call(resolved, arguments, workspace.data, arch);
    // If a quantizer is missing, its configuration is kept, and the launch refuses it.
    const auto substitute = [this](const QuantizeConfig& chosen, std::int64_t head_dim) {
      return gpu_.kernels->nearest(chosen, head_dim).value_or(chosen);
    };
    return prepare_call(resolved, arguments, workspace.data, arch, substitute);
  }

  // Resolves a run for one layout of V. The emulator's driver has few kernels, and may replace a
  // quantizer by one with more columns.
  Result<Resolved> resolve_layout(const Problem& run_problem, const Arguments* arguments,
                                  VLayout layout) const {
    return resolve(run_problem, arguments, layout, gpu_.is_emulated());
  }

  Result<ResolvedRun> resolve_run(const Problem& run_problem, const Arguments* arguments) const {
    Result<Resolved> rows = resolve_layout(run_problem, arguments, VLayout::rows);
    if (!rows.ok()) return rows.status();
    ResolvedRun run{*rows, *rows, rows->workspace_bytes};
    if (decode_)
      run.workspace_bytes =
          std::max(run.workspace_bytes, decode_workspace_bytes(*decode_, run_problem));
    if (!sm90_) return run;
    const VLayout layout = v_layout(sm90_->config);
    if (layout != VLayout::rows) {
      Result<Resolved> transposed = resolve_layout(run_problem, arguments, layout);
      if (!transposed.ok()) return transposed.status();
      run.for_sm90 = *transposed;
    }
    run.for_sm90.order = tile_order(run.for_sm90.kernel_problem, sm90_->config, gpu_.info);
    run.workspace_bytes = std::max(run.workspace_bytes, run.for_sm90.workspace_bytes);
    return run;
  }

  // Returns the plan's own resolved run or this thread's last one, and resolves again only if the
  // shapes differ from both. The pointer is valid until this thread's next run of a plan.
  Result<const ResolvedRun*> resolved(const Problem& run_problem,
                                      const Arguments* arguments) const {
    const Tokens tokens = tokens_of(run_problem, arguments);
    if (run_problem == problem && tokens == tokens_of(problem, nullptr)) return &planned_;
    ThreadRun& last = thread_run(repeated_.plan());
    if (last.plan == repeated_.plan() && last.tokens == tokens && last.run_problem == run_problem)
      return &last.resolved;
    Result<ResolvedRun> made = resolve_run(run_problem, arguments);
    if (!made.ok()) return made.status();
    last = {repeated_.plan(), run_problem, tokens, *made};
    return &last.resolved;
  }

  const Gpu& gpu_;
  const Forced forced_;
  const bool uses_decode_;
  const bool uses_sm90_;
  const bool only_sm90_;
  ResolvedRun planned_;
  std::optional<LoadedDecode> decode_;
  std::string decode_reason_;
  std::optional<LoadedSm90Forward> sm90_;
  std::string sm90_reason_;
  mutable std::atomic<const LoadedSm90Forward*> without_score_tiles_{nullptr};
  const RepeatedSm90Forward repeated_;
  const Sm80Kernels sm80_;
  mutable LoadedQuantizers quantizers_;
};

// Checks that the forced configuration fits the problem.
Result<Sm80ForwardConfig> forced_sm80(const Resolved& resolved, const GpuInfo& gpu,
                                      std::string_view text) {
  const Problem& problem = resolved.run_problem;
  const Sm80ForwardConfig chosen = choose_sm80_forward(resolved, gpu, 16).config;
  Sm80ForwardConfig defaults;
  defaults.arch = chosen.arch;
  defaults.element = chosen.element;
  defaults.output = chosen.output;
  defaults.head_dim = chosen.head_dim;
  defaults.head_dim_v = chosen.head_dim_v;
  defaults.load_bytes = chosen.load_bytes;
  defaults.k_row_scales = chosen.k_row_scales;
  defaults.modifiers = chosen.modifiers;
  const Result<Sm80ForwardConfig> config = parse_sm80_forward(text, defaults);
  if (!config.ok()) return config;
  OCTAVO_RETURN_IF_ERROR(feasible(*config, gpu.arch, gpu.smem_per_block_optin));
  if (config->arch != chosen.arch || config->element != chosen.element ||
      config->output != chosen.output || config->k_row_scales != chosen.k_row_scales ||
      !includes(config->modifiers, chosen.modifiers) || config->head_dim < problem.head_dim ||
      sm80::all_v_columns(*config) < problem.head_dim_v ||
      (config->head_dim_v == 0 && problem.head_dim_v != problem.head_dim))
    return invalid(
        "config", brief_text(*config),
        fmt::format("arch={},{} for this problem and chip", chosen.arch, brief_text(defaults)));
  return config;
}

Result<Sm90ForwardConfig> forced_sm90(const Resolved& resolved, const GpuInfo& gpu,
                                      std::string_view text) {
  const Problem& problem = resolved.run_problem;
  if (!sm90_forward_supports(resolved, gpu))
    return invalid("config", "of sm90_forward",
                   fmt::format("one of sm80_forward for {}", unserved(problem, gpu)));
  const Sm90ForwardConfig chosen = choose_sm90_forward(resolved, gpu).config;
  Sm90ForwardConfig defaults;
  defaults.element = chosen.element;
  defaults.v_element = chosen.v_element;
  defaults.output = chosen.output;
  defaults.k_scales = chosen.k_scales;
  defaults.head_dim = chosen.head_dim;
  defaults.head_dim_v = chosen.head_dim_v;
  defaults.modifiers = chosen.modifiers;
  defaults.modifiers.score_tiles = false;
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
      config->output != chosen.output || config->k_scales != chosen.k_scales ||
      config->scores > chosen.scores || !includes(config->modifiers, chosen.modifiers) ||
      config->head_dim < problem.head_dim || sm90::all_v_columns(*config) < problem.head_dim_v ||
      (sm90::is_split_kv(*config) && problem.varlen))
    return invalid("config", brief_text(*config),
                   fmt::format("{} for this problem{}", brief_text(defaults),
                               problem.varlen ? ", with row_groups=0" : ""));
  return config;
}

Result<DecodeConfig> forced_decode(const Problem& problem, const GpuInfo& gpu,
                                   std::string_view text) {
  if (!decode_supports(problem, gpu))
    return invalid("config", "of the decode kernel",
                   fmt::format("one of a forward kernel for {}", on_chip(problem, gpu)));
  const DecodeConfig chosen = choose_decode(problem, gpu).config;
  const Result<DecodeConfig> config = parse_decode(text, chosen);
  if (!config.ok()) return config;
  OCTAVO_RETURN_IF_ERROR(feasible(*config, gpu));
  if (config->element != chosen.element || config->kv != chosen.kv || config->out != chosen.out ||
      config->head_dim < problem.head_dim)
    return invalid("config", brief_text(*config),
                   fmt::format("{} for this problem", brief_text(chosen)));
  return config;
}

// Whether the GPU computes the problem. `device` is its name in error messages.
Status supports(const Resolved& resolved, const GpuInfo& info, const std::string& device) {
  const Problem& problem = resolved.run_problem;
  if (info.arch < 80)
    return unsupported("device", fmt::format("{} ({}, sm_{})", device, info.name, info.arch),
                       "sm_80 and later");
  if (problem.options.sm_margin >= info.sms)
    return invalid("sm_margin", fmt::format("{}", problem.options.sm_margin),
                   fmt::format("0 to {} on {}, which has {} SMs", info.sms - 1, device, info.sms));
  if (needs_decode_family(problem)) {
    if (decode_supports(problem, info)) return {};
    return unsupported(
        "problem", on_chip(problem, info),
        fmt::format("with a {} on a GPU an f16 or bf16 q over k and v of its dtype, int8, int4 in "
                    "a paged cache, or from sm_89 on e4m3 or e5m2; head_dim up to 256, equal to "
                    "head_dim_v, with rows of "
                    "whole 16 bytes; an f16, bf16 or f32 out without amax",
                    problem.paged ? "paged cache" : "draft tree"));
  }
  if (is_forced(KernelFamily::decode) && !decode_supports(problem, info))
    return unsupported("OCTAVO_KERNELS", "'decode'",
                       "sm80, sm90, or nothing for " + on_chip(problem, info));
  if (is_forced(KernelFamily::sm90) && !sm90_forward_supports(resolved, info))
    return no_other_family("for " + unserved(problem, info));
  if (!uses_sm90_family(resolved, info)) OCTAVO_RETURN_IF_ERROR(sm80_forward_supports(resolved));
  for (const auto& [what, element] :
       {std::pair{"q dtype", resolved.kernel_problem.q}, {"out dtype", problem.out}})
    if ((element == DType::e4m3 || element == DType::e5m2) && info.arch < 89)
      return unsupported(what, fmt::format("{} on sm_{}", name(element), info.arch),
                         "FP8 from sm_89 on");
  return {};
}

// A problem and the GPU that runs it.
struct GpuProblem {
  const Gpu* gpu = nullptr;
  Resolved resolved;
};
Result<GpuProblem> gpu_problem(const Problem& problem, Device device) {
  OCTAVO_RETURN_IF_ERROR(forced_kernel_family().status());
  // A library built without the emulator refuses the device for every problem.
  if (device.kind == Device::Kind::emulator) OCTAVO_RETURN_IF_ERROR(emulated_gpu(device).status());
  const Result<Resolved> resolved = resolve(problem);
  if (!resolved.ok()) return resolved.status();
  const Result<const Gpu*> gpu =
      device.kind == Device::Kind::emulator ? emulated_gpu(device) : open_gpu(device.index);
  if (!gpu.ok()) return gpu.status();
  OCTAVO_RETURN_IF_ERROR(supports(*resolved, (*gpu)->info, name(device)));
  return GpuProblem{*gpu, *resolved};
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
  const Result<GpuProblem> found = gpu_problem(problem, device);
  if (!found.ok()) return found.status();
  const Resolved& resolved = found->resolved;
  const GpuInfo& info = found->gpu->info;
  if (is_forced(KernelFamily::sm90) && row_alignment < 16)
    return no_other_family(fmt::format("for rows aligned to {} bytes", row_alignment));
  std::vector<KernelSource> kernels;
  const auto add = [&kernels](const KernelSource& source) {
    if (std::find(kernels.begin(), kernels.end(), source) == kernels.end())
      kernels.push_back(source);
  };
  const bool decodes = uses_decode_family(problem, info);
  if (decodes) {
    const DecodeConfig config = choose_decode(problem, info).config;
    add(kernel_source(config, code_for(info.arch).ptx));
    add(combine_source(config, code_for(info.arch).ptx));
  }
  for (const int alignment : {16, row_alignment}) {
    if (decodes && (alignment == 16 || needs_decode_family(problem))) continue;
    if (alignment < 16) OCTAVO_RETURN_IF_ERROR(sm80_forward_supports(resolved));
    VLayout layout = VLayout::rows;
    if (alignment == 16 && uses_sm90_family(resolved, info)) {
      const Sm90ForwardConfig config = choose_sm90_forward(resolved, info).config;
      add(kernel_source(config));
      layout = v_layout(config);
    } else {
      add(kernel_source(choose_sm80_forward(resolved, info, alignment).config,
                        code_for(info.arch).ptx));
    }
    const Result<Resolved> laid_out = resolve(problem, nullptr, layout);
    if (!laid_out.ok()) return laid_out.status();
    for (const KernelSource& source : quantizer_sources(*laid_out, info, alignment)) add(source);
  }
  return kernels;
}

Result<std::shared_ptr<const Plan::Impl>> make_gpu_plan(const Problem& problem, Device device,
                                                        std::string_view config) {
  const Result<GpuProblem> found = gpu_problem(problem, device);
  if (!found.ok()) return found.status();
  const GpuInfo& info = found->gpu->info;
  Forced forced;
  if (names_decode(config)) {
    const Result<DecodeConfig> parsed = forced_decode(problem, info, config);
    if (!parsed.ok()) return parsed.status();
    forced.decode = *parsed;
  } else if (names_sm90_forward(config)) {
    const Result<Sm90ForwardConfig> parsed = forced_sm90(found->resolved, info, config);
    if (!parsed.ok()) return parsed.status();
    forced.sm90 = *parsed;
  } else if (!config.empty()) {
    const Result<Sm80ForwardConfig> parsed = forced_sm80(found->resolved, info, config);
    if (!parsed.ok()) return parsed.status();
    forced.sm80 = *parsed;
  }
  auto made = std::make_shared<GpuPlan>(found->resolved, device, *found->gpu, forced);
  OCTAVO_RETURN_IF_ERROR(made->load());
  return std::shared_ptr<const Plan::Impl>(std::move(made));
}

Result<Explanation> explain_without_gpu(const Problem& problem, const GpuInfo& info) {
  OCTAVO_RETURN_IF_ERROR(forced_kernel_family().status());
  Result<Resolved> resolved = resolve(problem);
  if (!resolved.ok()) return resolved.status();
  OCTAVO_RETURN_IF_ERROR(supports(*resolved, info, info.name));
  Explanation e;
  e.device = fmt::format("{} (sm_{}, {} SMs)", info.name, info.arch, info.sms);
  e.workspace_bytes = resolved->workspace_bytes;
  bool persistent = true;
  if (uses_decode_family(problem, info)) {
    const ChosenDecode chosen = choose_decode(problem, info);
    e.kernel = "decode";
    e.config = to_text(chosen.config);
    e.reason = chosen.reason;
    const LoadedDecode kernel{
        .config = chosen.config, .sms = info.sms, .ctas_per_sm = chosen.config.min_ctas};
    e.workspace_bytes = std::max(e.workspace_bytes, decode_workspace_bytes(kernel, problem));
  } else if (uses_sm90_family(*resolved, info)) {
    const ChosenSm90Forward chosen = choose_sm90_forward(*resolved, info);
    e.kernel = "sm90_forward";
    e.config = to_text(chosen.config);
    resolved = resolve(problem, nullptr, v_layout(chosen.config));
    if (!resolved.ok()) return resolved.status();
    e.reason =
        chosen.reason + describe_quantizers(*resolved, chosen.config.scores == ScoreType::f16_fast);
    e.workspace_bytes = std::max(e.workspace_bytes, resolved->workspace_bytes);
    persistent = sm90_forward_is_persistent(resolved->kernel_problem, chosen.config);
  } else {
    const ChosenSm80Forward chosen = choose_sm80_forward(*resolved, info, 16);
    e.kernel = "sm80_forward";
    e.config = to_text(chosen.config);
    e.reason = chosen.reason + describe_quantizers(*resolved);
    persistent = chosen.config.persistent;
  }
  e.reason += margin_note(problem, info, persistent);
  return e;
}

}  // namespace octavo
