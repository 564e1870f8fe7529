#include "runtime/emulated_launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <tuple>

#include "attention/error.h"
#include "attention/operand_scales.h"
#include "emulator/sm80_forward_table.h"
#include "gpu/forward/sm80_forward.h"
#include "gpu/forward/sm90_forward.h"
#include "gpu/jit/config_text.h"
#include "numeric/fork_safe.h"
#include "runtime/staging.h"

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

emulator::GlobalMemory global_memory(const Problem& run_problem, const Arguments& a) {
  using Use = emulator::GlobalMemory::Use;
  emulator::GlobalMemory memory;
  const auto add = [&memory](const char* name, const ConstTensor& t, Use use) {
    memory.add({name, t.data, size_bytes(t.dtype), t.shape, t.stride, use});
  };
  add("q", a.q, Use::read);
  add("k", a.k, Use::read);
  add("v", a.v, Use::read);
  add("out", ConstTensor(a.out), Use::write);
  if (a.lse.data != nullptr) add("lse", ConstTensor(a.lse), Use::write);
  if (a.out_amax != nullptr) add("out_amax", ConstTensor(amax_view(run_problem, a)), Use::write);
  const auto add_scales = [&](const char* name, const ConstTensor& tensor, const Scales& scales,
                              std::int64_t max_len) {
    if (is_8bit(tensor.dtype))
      memory.add_array(name, scales.data,
                       static_cast<std::size_t>(scales_extent(a, tensor, scales, max_len)) * 4,
                       Use::read);
  };
  add_scales("q_scales", a.q, a.q_scales, run_problem.seqlen_q);
  add_scales("k_scales", a.k, a.k_scales, run_problem.seqlen_kv);
  add_scales("v_scales", v_by_rows(a), a.v_scales, run_problem.seqlen_kv);
  add_scales("out_scales", a.out, a.out_scales, run_problem.seqlen_q);
  const auto spans = static_cast<std::size_t>(a.sequences + 1) * sizeof(std::int32_t);
  if (a.cu_seqlens_q != nullptr) memory.add_array("cu_seqlens_q", a.cu_seqlens_q, spans, Use::read);
  if (a.cu_seqlens_kv != nullptr)
    memory.add_array("cu_seqlens_kv", a.cu_seqlens_kv, spans, Use::read);
  return memory;
}

template <class Kernels, class Config>
const auto* with_config(const Kernels& kernels, const Config& wanted) {
  const auto found = std::find_if(kernels.begin(), kernels.end(),
                                  [&wanted](const auto& k) { return k.config == wanted; });
  return found == kernels.end() ? nullptr : &*found;
}

}  // namespace

const GpuInfo* emulated_chip(Device device) {
  static constinit MadeOnce<GpuInfo> l4, h200;
  if (device.index == 0)
    return &l4.get([] { return make_chip(emulator::kSm80Arch, 58, 48 << 20); });
  if (device.index == 90) return &h200.get([] { return make_chip(90, 132, 60 << 20); });
  return nullptr;
}

const emulator::EmulatedSm80Forward* emulated_sm80_forward(const Problem& problem,
                                                           const GpuInfo& chip, int alignment) {
  const auto& kernels = emulator::sm80_forward_kernels();
  Sm80ForwardConfig wanted = choose_sm80_forward(problem, chip, alignment).config;
  wanted.arch = emulator::kSm80Arch;  // the compiled code does not depend on it
  if (const auto* chosen = with_config(kernels, wanted)) return chosen;
  // The chosen kernel is not compiled in: take the compatible one with the least padding.
  const emulator::EmulatedSm80Forward* best = nullptr;
  for (const auto& kernel : kernels) {
    const Sm80ForwardConfig& c = kernel.config;
    const bool serves = c.element == wanted.element && c.out == wanted.out &&
                        c.amax == wanted.amax && c.k_row_scales == wanted.k_row_scales &&
                        c.load_bytes <= wanted.load_bytes && c.head_dim >= problem.head_dim;
    const auto worse = [](const Sm80ForwardConfig& x) {
      return std::pair(x.head_dim, -x.load_bytes);
    };
    if (serves && (best == nullptr || worse(c) < worse(best->config))) best = &kernel;
  }
  return best;
}

const emulator::EmulatedSm90Forward* emulated_sm90_forward(const Problem& problem,
                                                           const GpuInfo& chip) {
  if (!sm90_forward_serves(problem, chip)) return nullptr;
  const Sm90ForwardConfig wanted = choose_sm90_forward(problem, chip).config;
  for (const QuantizeConfig& config : quantizers_of(problem, chip.arch, 16, v_layout(wanted)))
    if (emulator::find_quantize(config, static_cast<int>(problem.head_dim)) == nullptr)
      return nullptr;
  const auto& kernels = emulator::sm90_forward_kernels();
  if (const auto* chosen = with_config(kernels, wanted)) return chosen;
  const emulator::EmulatedSm90Forward* best = nullptr;
  for (const auto& kernel : kernels) {
    const Sm90ForwardConfig& c = kernel.config;
    const bool serves = c.element == wanted.element && c.v_element == wanted.v_element &&
                        c.out_element == wanted.out_element && c.amax == wanted.amax &&
                        c.head_dim == wanted.head_dim && c.k_scales == wanted.k_scales &&
                        c.scores <= wanted.scores && !(c.sum_rounded_p && problem.lse) &&
                        !(sm90::is_split_kv(c) && problem.varlen);
    const auto distance = [&wanted](const Sm90ForwardConfig& x) {
      const bool queued = x.schedule == Schedule::pv_first_queued;
      return std::tuple(static_cast<int>(wanted.scores) - static_cast<int>(x.scores),
                        x.pack_gqa != wanted.pack_gqa,
                        sm90::is_split_kv(x) != sm90::is_split_kv(wanted),
                        x.block_n != wanted.block_n, x.cluster != wanted.cluster,
                        x.warpgroups != wanted.warpgroups, x.stages != wanted.stages,
                        queued != (wanted.schedule == Schedule::pv_first_queued));
    };
    if (serves && (best == nullptr || distance(c) < distance(best->config))) best = &kernel;
  }
  return best;
}

Status run_emulated(const emulator::EmulatedSm80Forward& kernel, const GpuInfo& chip,
                    const Problem& run_problem, const Arguments& arguments,
                    const emulator::Settings& settings, const EmulatorThen& then) {
  const auto entry = [&](const void* p) { kernel.entry(*static_cast<const ForwardParams*>(p)); };
  EmulatedFunction function{"sm80_forward " + brief_text(kernel.config), chip.arch, entry,
                            global_memory(run_problem, arguments),       settings,  then};
  const Gpu gpu{chip, &emulated_driver(), nullptr};
  return launch_sm80_forward(gpu, {kernel.config, function.handle(), chip.sms}, run_problem,
                             arguments, nullptr);
}

Status run_emulated(const emulator::EmulatedSm90Forward& kernel, const GpuInfo& chip,
                    const Problem& run_problem, const Arguments& arguments,
                    const emulator::Settings& settings, const EmulatorThen& then) {
  const auto entry = [&](const void* p) {
    kernel.entry(*static_cast<const Sm90ForwardParams*>(p));
  };
  EmulatedFunction function{"sm90_forward " + brief_text(kernel.config), chip.arch, entry,
                            global_memory(run_problem, arguments),       settings,  then};
  const Gpu gpu{chip, &emulated_driver(), nullptr};
  // Always launched early, so that the emulator finds reads that do not wait for earlier grids.
  const LoadedSm90Forward loaded{kernel.config, function.handle(), {}, true};
  return launch_sm90_forward(gpu, loaded, run_problem, arguments, nullptr);
}

Result<Arguments> with_operands_for(const Sm90ForwardConfig& config, const Problem& run_problem,
                                    const Arguments& arguments, std::vector<std::byte>& memory) {
  const VLayout layout = v_layout(config);
  const GpuInfo& chip = *emulated_chip({Device::Kind::emulator, 90});
  if (quantizers_of(run_problem, chip.arch, 16, layout).empty()) return arguments;
  constexpr std::size_t kAlignment = 64;
  constexpr std::byte kPoison{0x7f};  // NaN in FP8
  const std::size_t bytes = prepared_bytes(run_problem, &arguments, layout, true);
  memory.assign(bytes + kAlignment, kPoison);
  void* workspace = memory.data();
  std::size_t room = memory.size();
  std::align(kAlignment, bytes, workspace, room);
  const PreparedCall call =
      prepare_call(run_problem, arguments, workspace, chip.arch, emulated_quantize, layout);
  Status found;
  for (std::size_t i = 0; i < call.count; ++i) {
    const QuantizeLaunch& pass = call.launches[i];
    const auto* const quantizer =
        emulator::find_quantize(pass.config, static_cast<int>(run_problem.head_dim));
    if (quantizer == nullptr)
      return unsupported("quantizer", to_text(pass.config), "those of the emulator");
    run_emulated_quantizer(*quantizer, chip, pass, {}, [&found](const emulator::Machine& machine) {
      if (!machine.report().clean()) found = {ErrorCode::device_error, machine.report().text()};
    });
  }
  if (!found.ok()) return found;
  return call.arguments;
}

QuantizeConfig emulated_quantize(const QuantizeConfig& chosen, std::int64_t head_dim) {
  const auto* const found = emulator::find_quantize(chosen, static_cast<int>(head_dim));
  return found != nullptr ? found->config : chosen;
}

void run_emulated_quantizer(const emulator::EmulatedQuantize& kernel, const GpuInfo& chip,
                            const QuantizeLaunch& pass, const emulator::Settings& settings,
                            const EmulatorThen& then) {
  using Use = emulator::GlobalMemory::Use;
  const QuantizeConfig& c = kernel.config;
  emulator::GlobalMemory memory;
  const auto add = [&memory, &c](const QuantizeParams& p, const QuantizeMemory& x, bool only_amax) {
    memory.add(
        {"x", x.from.data, size_bytes(x.from.dtype), x.from.shape, x.from.stride, Use::read});
    const bool codes = !only_amax && c.mean_pass == 0;
    if (codes) memory.add_array("codes", p.out, x.out_bytes, Use::write);
    if (codes && x.scale_bytes > 0)
      memory.add_array("scales", p.scales, x.scale_bytes,
                       quantizer::dequantizes(c) ? Use::read : Use::write);
    if (x.partial_bytes > 0 && c.mean_pass == 0)
      memory.add_array("amax", p.partial_amax, x.partial_bytes, only_amax ? Use::write : Use::read);
    if (p.cu_seqlens != nullptr)
      memory.add_array("cu_seqlens", p.cu_seqlens,
                       (static_cast<std::size_t>(p.sequences) + 1) * sizeof(std::int32_t),
                       Use::read);
  };
  const OperandsParams& p = pass.params;
  const bool second = c.operands && !c.amax_pass && !c.one_pass;
  const bool k_of_heads = c.group == ScaleGroup::head;
  if (c.mean_pass > 0 || c.smooth) {
    const QuantizeMemory& x = pass.memory[c.operands ? 1 : 0];
    if (c.mean_pass > 0)
      memory.add_array("mean_sums", p.q.mean_sums, x.sum_bytes,
                       c.mean_pass == 1 ? Use::write : Use::read);
    if (c.mean_pass != 1)
      memory.add_array("means", c.operands ? p.k.means : p.q.means, x.mean_bytes,
                       c.smooth ? Use::read : Use::write);
  }
  if (!second) add(p.q, pass.memory[0], c.amax_pass && !c.operands);
  if (c.operands && (!second || k_of_heads)) add(p.k, pass.memory[1], c.amax_pass && k_of_heads);
  if (c.operands) add(p.v, pass.memory[2], c.amax_pass);
  emulator::Launch launch;
  launch.kernel = fmt::format("quantize {}", brief_text(kernel.config));
  launch.arch = chip.arch;
  launch.blocks = pass.blocks;
  launch.cluster = pass.cluster;
  launch.programmatic = quantizer::overlaps(c);
  launch.threads = kernel.config.threads;
  launch.smem_bytes = static_cast<std::uint32_t>(quantizer::smem_bytes(kernel.config));
  launch.entry = [&] { kernel.entry(p); };
  emulator::Machine machine(launch, memory, settings);
  machine.run();
  then(machine);
}

}  // namespace octavo
