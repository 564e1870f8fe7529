// SPDX-License-Identifier: Apache-2.0
#include "runtime/emulated/emulated_gpu.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "attention/operand_scales.h"
#include "base/error.h"
#include "config/shared_parts.h"
#include "emulator/kernels/append.h"
#include "emulator/kernels/decode.h"
#include "emulator/kernels/ladder.h"
#include "emulator/kernels/quantize.h"
#include "emulator/kernels/sm80_forward.h"
#include "emulator/kernels/sm80_forward_table.h"
#include "emulator/kernels/sm90_forward.h"
#include "gpu/cache/append.h"
#include "gpu/forward/sm80_forward.h"
#include "gpu/jit/config_text.h"
#include "gpu/jit/load_function.h"
#include "gpu/ladder/ladder.h"
#include "gpu/quantize/prepare_operands.h"
#include "numeric/fork_safe.h"
#include "octavo/emulator.hpp"
#include "runtime/emulated/emulated_driver.h"
#include "runtime/emulated/emulated_launch.h"

namespace octavo {
namespace {

// The emulated chips are an L4 (sm_89, the first of the sm80 family with native FP8) and an H200.
GpuInfo make_chip(int arch, int sms, int l2_bytes) {
  GpuInfo chip;
  chip.name = "emulator";
  chip.arch = arch;
  chip.sms = sms;
  chip.smem_per_block_optin = max_smem_bytes(arch);
  chip.l2_bytes = l2_bytes;
  return chip;
}

template <class Kernels, class Config>
bool has_config(const Kernels& kernels, const Config& wanted) {
  return std::any_of(kernels.begin(), kernels.end(),
                     [&wanted](const auto& k) { return k.config == wanted; });
}

// The kernels compiled into the library, as functions of the emulated driver.
class CompiledInKernels final : public KernelSet {
 public:
  explicit CompiledInKernels(const GpuInfo& chip) : chip_(chip) {
    for (const auto& kernel : emulator::sm80_forward_kernels())
      add(kernel_source(kernel.config), emulated_function(kernel, chip.arch));
    for (const auto& kernel : emulator::sm90_forward_kernels())
      add(kernel_source(kernel.config), emulated_function(kernel, chip.arch));
    for (const auto& kernel : emulator::quantize_kernels())
      add(kernel_source(kernel.config), emulated_function(kernel, chip.arch));
    for (const auto& kernel : emulator::decode_kernels()) {
      add(kernel_source(kernel.config), emulated_function(kernel, chip.arch));
      add(combine_source(kernel.config), emulated_combine(kernel, chip.arch));
    }
    for (const auto& kernel : emulator::append_kernels())
      add(kernel_source(kernel.config), emulated_function(kernel, chip.arch));
    for (const auto& kernel : emulator::ladder_kernels())
      add(kernel_source(kernel.config, chip.arch), emulated_function(kernel, chip.arch));
  }

  // The chosen kernel, or the compatible one with the fewest modifiers and the least padding.
  std::optional<Sm80ForwardConfig> nearest(const Sm80ForwardConfig& chosen,
                                           const Problem& problem) const override {
    const auto& kernels = emulator::sm80_forward_kernels();
    Sm80ForwardConfig wanted = chosen;
    wanted.arch = emulator::kSm80Arch;  // the compiled code does not depend on it
    if (has_config(kernels, wanted)) return wanted;
    std::optional<Sm80ForwardConfig> best;
    for (const auto& kernel : kernels) {
      const Sm80ForwardConfig& c = kernel.config;
      const bool serves = c.element == wanted.element && c.output == wanted.output &&
                          c.k_row_scales == wanted.k_row_scales &&
                          includes(c.modifiers, wanted.modifiers) &&
                          c.load_bytes <= wanted.load_bytes && c.head_dim >= problem.head_dim &&
                          sm80::all_v_columns(c) >= problem.head_dim_v &&
                          sm80::column_tiles(c) == sm80::column_tiles(wanted) &&
                          (c.head_dim_v != 0) == (wanted.head_dim_v != 0);
      const auto worse = [](const Sm80ForwardConfig& x) {
        return std::tuple(count(x.modifiers), x.head_dim + sm80::all_v_columns(x), -x.load_bytes);
      };
      if (serves && (!best || worse(c) < worse(*best))) best = c;
    }
    return best;
  }

  std::optional<Sm90ForwardConfig> nearest(const Sm90ForwardConfig& chosen,
                                           const Problem& problem) const override {
    const auto& kernels = emulator::sm90_forward_kernels();
    if (has_config(kernels, chosen)) return chosen;
    std::optional<Sm90ForwardConfig> best;
    for (const auto& kernel : kernels) {
      const Sm90ForwardConfig& c = kernel.config;
      // There are few kernels for V with another head_dim, and they also serve smaller head_dims.
      const bool has_columns =
          chosen.head_dim_v == 0
              ? c.head_dim == chosen.head_dim && c.head_dim_v == 0
              : c.head_dim_v >= chosen.head_dim_v && c.head_dim >= chosen.head_dim;
      const bool serves =
          c.element == chosen.element && c.v_element == chosen.v_element &&
          c.output == chosen.output && has_columns && c.k_scales == chosen.k_scales &&
          c.scores <= chosen.scores && !(c.sum_rounded_p && problem.lse) &&
          includes(c.modifiers, chosen.modifiers) && !(sm90::is_split_kv(c) && problem.varlen);
      const auto distance = [&chosen](const Sm90ForwardConfig& x) {
        const bool queued = x.schedule == Schedule::pv_first_queued;
        return std::tuple(count(x.modifiers), x.head_dim + sm90::all_v_columns(x),
                          static_cast<int>(chosen.scores) - static_cast<int>(x.scores),
                          x.pack_gqa != chosen.pack_gqa,
                          sm90::is_split_kv(x) != sm90::is_split_kv(chosen),
                          x.block_n != chosen.block_n, x.cluster != chosen.cluster,
                          x.warpgroups != chosen.warpgroups, x.stages != chosen.stages,
                          queued != (chosen.schedule == Schedule::pv_first_queued));
      };
      if (serves && (!best || distance(c) < distance(*best))) best = c;
    }
    return best;
  }

  // Tiles may be smaller than the chosen ones.
  std::optional<DecodeConfig> nearest(const DecodeConfig& chosen,
                                      const Problem& problem) const override {
    std::optional<DecodeConfig> best;
    for (const auto& kernel : emulator::decode_kernels()) {
      const DecodeConfig& c = kernel.config;
      const bool serves = c.arch == chosen.arch && c.element == chosen.element &&
                          c.kv == chosen.kv && c.group == chosen.group && c.out == chosen.out &&
                          c.draft_tree == chosen.draft_tree &&
                          c.batch_invariant == chosen.batch_invariant &&
                          c.clusters <= chosen.clusters && c.head_dim >= problem.head_dim;
      const auto distance = [&chosen](const DecodeConfig& x) {
        return std::tuple(x.head_dim, x.block_m != chosen.block_m, x.clusters != chosen.clusters);
      };
      if (serves && (!best || distance(c) < distance(*best))) best = c;
    }
    return best;
  }

  std::optional<QuantizeConfig> nearest(const QuantizeConfig& chosen,
                                        std::int64_t head_dim) const override {
    const auto* const found = emulator::find_quantize(chosen, static_cast<int>(head_dim));
    if (found == nullptr) return {};
    return found->config;
  }

  std::optional<AppendConfig> nearest(const AppendConfig& chosen,
                                      std::int64_t head_dim) const override {
    const auto* const found = emulator::find_append(chosen, static_cast<int>(head_dim));
    if (found == nullptr) return {};
    return found->config;
  }

  Result<cuda::Function> function(const KernelSource& source) const override {
    const auto found = by_name_.find(source.name_expression);
    if (found != by_name_.end()) return found->second->handle();
    return unsupported("kernel", source.name_expression,
                       "on the emulator its own kernels (octavo emulator kernels)");
  }

  std::string reason() const override {
    return fmt::format("the best of the emulator's kernels for {} SMs of sm_{}", chip_.sms,
                       chip_.arch);
  }

  void announce(const Problem& kernel_problem, const Arguments& arguments) const override {
    set_emulated_memory(memory_of(kernel_problem, arguments));
  }
  void announce(const QuantizeLaunch& launch) const override {
    set_emulated_memory(memory_of(launch));
  }
  void announce(const AppendCall& call) const override { set_emulated_memory(memory_of(call)); }
  void announce_decode(const Problem& run_problem, const Arguments& arguments, Workspace workspace,
                       bool combines) const override {
    set_emulated_memory(memory_of_decode(run_problem, arguments, workspace, combines));
  }

 private:
  void add(const KernelSource& source, EmulatedFunction function) {
    functions_.push_back(std::move(function));
    by_name_[source.name_expression] = &functions_.back();
  }

  const GpuInfo chip_;
  std::deque<EmulatedFunction> functions_;  // whose addresses are the handles
  std::map<std::string, EmulatedFunction*> by_name_;
};

// Never destroyed, like everything that MadeOnce makes.
struct Chip {
  explicit Chip(const GpuInfo& info) : kernels(info) {
    gpu.info = info;
    gpu.driver = &emulated_driver();
    gpu.kernels = &kernels;
  }
  CompiledInKernels kernels;
  Gpu gpu;
};

}  // namespace

Result<const Gpu*> emulated_gpu(Device device) {
  static constinit MadeOnce<std::unique_ptr<const Chip>> l4, h200;
  const auto make = [](int arch, int sms, int l2_bytes) {
    return std::make_unique<const Chip>(make_chip(arch, sms, l2_bytes));
  };
  if (device.index == 0)
    return &l4.get([&] { return make(emulator::kSm80Arch, 58, 48 << 20); })->gpu;
  if (device.index == 90) return &h200.get([&] { return make(90, 132, 60 << 20); })->gpu;
  return unsupported("device", name(device), "emulator, emulator:90");
}

std::string describe_emulator(Device device) {
  const GpuInfo& chip = emulated_gpu(device).value()->info;
  return fmt::format(
      "sm_{} on the CPU, {} SMs, {} kernels", chip.arch, chip.sms,
      emulated_kernels().size() - (chip.arch == 90 ? 0 : emulator::sm90_forward_kernels().size()));
}

bool has_emulator() { return true; }

std::vector<EmulatedKernel> emulated_kernels() {
  std::vector<EmulatedKernel> kernels;
  for (const auto& kernel : emulator::sm80_forward_kernels())
    kernels.push_back({"sm80_forward", to_text(kernel.config), brief_text(kernel.config)});
  for (const auto& kernel : emulator::sm90_forward_kernels())
    kernels.push_back({"sm90_forward", to_text(kernel.config), brief_text(kernel.config)});
  for (const auto& kernel : emulator::quantize_kernels())
    kernels.push_back({"quantize", to_text(kernel.config), brief_text(kernel.config)});
  for (const auto& kernel : emulator::decode_kernels())
    kernels.push_back({"decode", to_text(kernel.config), brief_text(kernel.config)});
  for (const auto& kernel : emulator::append_kernels())
    kernels.push_back({"append", to_text(kernel.config), brief_text(kernel.config)});
  for (const auto& kernel : emulator::ladder_kernels())
    kernels.push_back({"ladder", to_text(kernel.config), brief_text(kernel.config)});
  return kernels;
}

}  // namespace octavo
