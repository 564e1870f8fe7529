// SPDX-License-Identifier: Apache-2.0
#include "runtime/emulated/emulated_launch.h"

#include <fmt/format.h>

#include <memory>

#include "attention/int4_rows.h"
#include "attention/operand_scales.h"
#include "base/error.h"
#include "gpu/decode/decode.h"
#include "gpu/forward/sm80_forward.h"
#include "gpu/forward/sm90_forward.h"
#include "gpu/jit/config_text.h"
#include "gpu/ladder/ladder.h"
#include "gpu/quantize/launch_quantize.h"
#include "runtime/emulated/emulated_gpu.h"

namespace octavo {
namespace {

// An emulated GPU. It may differ from those of the emulator devices.
Gpu gpu_of(const GpuInfo& chip) {
  Gpu gpu;
  gpu.info = chip;
  gpu.driver = &emulated_driver();
  gpu.kernels = emulated_gpu({Device::Kind::emulator, 90}).value()->kernels;
  return gpu;
}

}  // namespace

EmulatedFunction emulated_function(const emulator::EmulatedSm80Forward& kernel, int arch) {
  const auto entry = [run = kernel.entry](const void* p) {
    run(*static_cast<const ForwardParams*>(p));
  };
  return {"sm80_forward " + brief_text(kernel.config), arch, entry, false};
}

EmulatedFunction emulated_function(const emulator::EmulatedSm90Forward& kernel, int arch) {
  const auto entry = [run = kernel.entry](const void* p) {
    run(*static_cast<const Sm90ForwardParams*>(p));
  };
  EmulatedFunction function{"sm90_forward " + brief_text(kernel.config), arch, entry, true};
  const Sm90ForwardConfig& c = kernel.config;
  if (!sm90::is_split_kv(c) && c.warpgroups == 1) function.registers = sm90::launch_registers(c);
  return function;
}

EmulatedFunction emulated_function(const emulator::EmulatedQuantize& kernel, int arch) {
  // A kernel for one operand only reads the first member.
  const auto entry = [run = kernel.entry](const void* p) {
    run(*static_cast<const OperandsParams*>(p));
  };
  return {"quantize " + brief_text(kernel.config), arch, entry, quantizer::overlaps(kernel.config)};
}

EmulatedFunction emulated_function(const emulator::EmulatedDecode& kernel, int arch) {
  const auto entry = [run = kernel.entry](const void* p) {
    run(*static_cast<const decode::Params*>(p));
  };
  return {"decode " + brief_text(kernel.config), arch, entry, false};
}

EmulatedFunction emulated_combine(const emulator::EmulatedDecode& kernel, int arch) {
  const auto entry = [run = kernel.combine](const void* p) {
    run(*static_cast<const decode::Params*>(p));
  };
  return {"decode_combine " + brief_text(kernel.config), arch, entry, kernel.config.arch >= 90};
}

EmulatedFunction emulated_function(const emulator::EmulatedAppend& kernel, int arch) {
  const auto entry = [run = kernel.entry](const void* p) {
    run(*static_cast<const append::Params*>(p));
  };
  return {"append " + brief_text(kernel.config), arch, entry, false};
}

EmulatedFunction emulated_function(const emulator::EmulatedLadder& kernel, int arch) {
  const auto entry = [run = kernel.entry](const void* p) {
    run(*static_cast<const ladder::Params*>(p));
  };
  return {"ladder " + brief_text(kernel.config), arch, entry, false};
}

void add_block_mask(emulator::GlobalMemory& memory, const BlockMask& m) {
  if (m.block_size == 0) return;
  const std::int64_t rows = m.batch * m.heads * m.q_blocks;
  const auto add_words = [&memory](const char* name, const void* array, std::int64_t words) {
    if (array != nullptr)
      memory.add_array(name, array, static_cast<std::size_t>(words) * sizeof(std::int32_t),
                       emulator::GlobalMemory::Use::read);
  };
  add_words("kv_num_blocks", m.kv_num_blocks, rows);
  add_words("kv_indices", m.kv_indices, rows * m.kv_capacity);
  add_words("full_kv_num_blocks", m.full_kv_num_blocks, rows);
  add_words("full_kv_indices", m.full_kv_indices, rows * m.full_kv_capacity);
  add_words("bit_indices", m.bit_indices, rows * m.kv_capacity);
  add_words("bits", m.bits, m.bit_blocks * m.block_size * m.block_size / 32);
}

emulator::GlobalMemory memory_of(const Problem& run_problem, const Arguments& a) {
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
  for (const auto& [name, t] : {std::pair{"bias", a.bias}, {"mask", a.mask}})
    if (t.data != nullptr) add(name, t, Use::read);
  const auto add_words = [&memory](const char* name, const void* data, std::int64_t words) {
    if (data != nullptr)
      memory.add_array(name, data, static_cast<std::size_t>(words) * 4, Use::read);
  };
  add_words("alibi_slopes", a.alibi_slopes,
            (run_problem.batch - 1) * a.alibi_batch_stride + run_problem.heads_q);
  add_words("sinks", a.sinks, run_problem.heads_q);
  add_words("seqlens_q", a.seqlens_q, run_problem.batch);
  add_words("seqlens_kv", a.seqlens_kv, run_problem.batch);
  add_words("leftpad_q", a.leftpad_q, run_problem.batch);
  add_words("leftpad_kv", a.leftpad_kv, run_problem.batch);
  add_words("page_table", a.page_table, page_table_extent(a));
  add_words("draft_tree", a.draft_tree, a.q.shape[0] * a.q.shape[2]);
  if (a.k.dtype == DType::int4) {
    add_words("k_groups", a.k_groups.data, groups_words(a.k, a.k_groups));
    add_words("v_groups", a.v_groups.data, groups_words(a.v, a.v_groups));
  }
  add_block_mask(memory, a.block_mask);
  const auto spans = static_cast<std::size_t>(a.sequences + 1) * sizeof(std::int32_t);
  if (a.cu_seqlens_q != nullptr) memory.add_array("cu_seqlens_q", a.cu_seqlens_q, spans, Use::read);
  if (a.cu_seqlens_kv != nullptr)
    memory.add_array("cu_seqlens_kv", a.cu_seqlens_kv, spans, Use::read);
  return memory;
}

emulator::GlobalMemory memory_of_decode(const Problem& run_problem, const Arguments& arguments,
                                        Workspace workspace, bool combines) {
  using Use = emulator::GlobalMemory::Use;
  emulator::GlobalMemory memory = memory_of(run_problem, arguments);
  if (workspace.bytes > 0)
    memory.add_array("partial results", workspace.data, workspace.bytes,
                     combines ? Use::read : Use::write);
  return memory;
}

emulator::GlobalMemory memory_of(const QuantizeLaunch& pass) {
  using Use = emulator::GlobalMemory::Use;
  const QuantizeConfig& c = pass.config;
  emulator::GlobalMemory memory;
  const auto add = [&memory, &c](const QuantizeParams& p, const QuantizeMemory& x, bool only_amax) {
    memory.add(
        {"x", x.from.data, size_bytes(x.from.dtype), x.from.shape, x.from.stride, Use::read});
    const bool quantizes = !only_amax && c.mean_pass == 0;
    if (quantizes) memory.add_array("quantized", p.out, x.out_bytes, Use::write);
    if (quantizes && x.scale_bytes > 0)
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
  return memory;
}

emulator::GlobalMemory memory_of(const AppendCall& call) {
  using Use = emulator::GlobalMemory::Use;
  emulator::GlobalMemory memory;
  const auto add = [&memory](const char* name, const ConstTensor& t, Use use) {
    memory.add({name, t.data, size_bytes(t.dtype), t.shape, t.stride, use});
  };
  add("k", call.k, Use::read);
  add("v", call.v, Use::read);
  add("cache of k", ConstTensor(call.cache.k), Use::write);
  add("cache of v", ConstTensor(call.cache.v), Use::write);
  const auto add_words = [&memory](const char* name, const void* data, std::int64_t words,
                                   Use use) {
    memory.add_array(name, data, static_cast<std::size_t>(words) * 4, use);
  };
  const std::array<std::int64_t, 4>& cache = call.cache.k.shape;
  if (is_8bit(call.cache.k.dtype)) {
    add_words("k_scales", call.cache.k_scales, cache[0] * cache[1] * cache[2], Use::write);
    add_words("v_scales", call.cache.v_scales, cache[0] * cache[1] * cache[2], Use::write);
  }
  if (call.cache.k.dtype == DType::int4)
    for (const auto& [name, groups] :
         {std::pair{"k_groups", &call.cache.k_groups}, {"v_groups", &call.cache.v_groups}})
      add_words(name, groups->data, cache[0] * groups->of_page() / 2, Use::write);
  const std::int64_t batch = call.k.shape[0];
  add_words("page_table", call.batch.page_table, batch * call.batch.page_table_stride, Use::read);
  add_words("lengths", call.batch.lengths, batch, Use::write);
  add_words("capacities", call.batch.capacities, batch, Use::read);
  add_words("arrivals", call.batch.arrivals, 1, Use::write);
  if (call.rotary.cos != nullptr) {
    add_words("cos", call.rotary.cos, call.rotary.positions * call.rotary.pairs, Use::read);
    add_words("sin", call.rotary.sin, call.rotary.positions * call.rotary.pairs, Use::read);
  }
  return memory;
}

Status run_emulated(const emulator::EmulatedSm80Forward& kernel, const GpuInfo& chip,
                    const Problem& run_problem, const Arguments& arguments,
                    const emulator::Settings& settings, const EmulatorThen& then) {
  EmulatedFunction function = emulated_function(kernel, chip.arch);
  const ExaminedLaunches examined(settings, then);
  return launch_sm80_forward(gpu_of(chip), {kernel.config, function.handle(), 1}, run_problem,
                             arguments, nullptr);
}

Status run_emulated(const emulator::EmulatedSm90Forward& kernel, const GpuInfo& chip,
                    const Problem& run_problem, const Arguments& arguments,
                    const emulator::Settings& settings, const EmulatorThen& then) {
  EmulatedFunction function = emulated_function(kernel, chip.arch);
  const ExaminedLaunches examined(settings, then);
  return launch_sm90_forward(gpu_of(chip), {kernel.config, function.handle()}, run_problem,
                             arguments, nullptr);
}

Status run_emulated(const emulator::EmulatedLadder& kernel, const GpuInfo& chip,
                    const Problem& run_problem, const Arguments& arguments,
                    const emulator::Settings& settings, const EmulatorThen& then) {
  EmulatedFunction function = emulated_function(kernel, chip.arch);
  const ExaminedLaunches examined(settings, then);
  return launch_ladder(gpu_of(chip), kernel.config, function.handle(), run_problem, arguments,
                       nullptr);
}

Status run_emulated(const emulator::EmulatedDecode& kernel, const GpuInfo& chip,
                    const Problem& run_problem, const Arguments& arguments,
                    const emulator::Settings& settings, const EmulatorThen& then) {
  EmulatedFunction function = emulated_function(kernel, chip.arch);
  EmulatedFunction combine = emulated_combine(kernel, chip.arch);
  // Clusters of 8, 4 and 2 CTAs are tested with up to 2 work tiles, 4, and more.
  const LoadedDecode loaded{kernel.config, function.handle(), combine.handle(), chip.sms, 1,
                            {0, 8, 4, 2}};
  constexpr float kNan = __builtin_nanf("");
  std::vector<float> workspace(decode_workspace_bytes(loaded, run_problem) / sizeof(float), kNan);
  const ExaminedLaunches examined(settings, then);
  return launch_decode(gpu_of(chip), loaded, run_problem, arguments,
                       {workspace.data(), workspace.size() * sizeof(float)}, nullptr);
}

Status run_emulated(const emulator::EmulatedQuantize& kernel, const GpuInfo& chip,
                    const QuantizeLaunch& launch, const emulator::Settings& settings,
                    const EmulatorThen& then) {
  EmulatedFunction function = emulated_function(kernel, chip.arch);
  const ExaminedLaunches examined(settings, then);
  QuantizeLaunches launches;
  launches.prepare(function.handle(), launch, true);
  return launches.launch(gpu_of(chip), nullptr);
}

Status run_emulated(const emulator::EmulatedAppend& kernel, const GpuInfo& chip,
                    const AppendCall& call, const emulator::Settings& settings,
                    const EmulatorThen& then) {
  EmulatedFunction function = emulated_function(kernel, chip.arch);
  const ExaminedLaunches examined(settings, then);
  return launch_append(gpu_of(chip), kernel.config, function.handle(), call, nullptr);
}

Result<Arguments> with_operands_for(const Sm90ForwardConfig& config, const Problem& run_problem,
                                    const Arguments& arguments, std::vector<std::byte>& memory) {
  const Result<Resolved> resolved = resolve(run_problem, &arguments, v_layout(config), true);
  if (!resolved.ok()) return resolved.status();
  if (!resolved->converts()) return arguments;
  const Gpu& gpu = *emulated_gpu({Device::Kind::emulator, 90}).value();
  constexpr std::size_t kAlignment = 64;
  constexpr std::byte kPoison{0x7f};  // NaN in FP8
  const std::size_t bytes = resolved->workspace_bytes;
  memory.assign(bytes + kAlignment, kPoison);
  void* workspace = memory.data();
  std::size_t room = memory.size();
  std::align(kAlignment, bytes, workspace, room);
  const auto substitute = [&gpu](const QuantizeConfig& chosen, std::int64_t head_dim) {
    return gpu.kernels->nearest(chosen, head_dim).value_or(chosen);
  };
  const PreparedCall call =
      prepare_call(*resolved, arguments, workspace, gpu.info.arch, substitute);
  LoadedQuantizers quantizers(gpu);
  OCTAVO_RETURN_IF_ERROR(quantizers.launch(call, nullptr));
  return call.arguments;
}

}  // namespace octavo
