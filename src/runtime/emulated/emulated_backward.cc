// SPDX-License-Identifier: Apache-2.0
#include "runtime/emulated/emulated_backward.h"

#include <algorithm>
#include <utility>

#include "attention/backward_arguments.h"
#include "attention/sequence.h"
#include "base/error.h"
#include "emulator/kernels/sm80_backward.h"
#include "emulator/kernels/sm90_backward.h"
#include "gpu/backward/sm80_backward.h"
#include "gpu/jit/config_text.h"
#include "runtime/emulated/emulated_launch.h"

namespace octavo {
namespace {

// The memory that the launches may access.
class BackwardMemory {
 public:
  using Use = emulator::GlobalMemory::Use;

  BackwardMemory(const Problem& run_problem, const BackwardArguments& a, void* workspace)
      : a_(a), workspace_(workspace), workspace_bytes_(row_stats_bytes(run_problem)) {}

  emulator::GlobalMemory row_stats() const {
    emulator::GlobalMemory memory = common(Use::write);
    add(memory, "out", a_.out, Use::read);
    add(memory, "lse", a_.lse, Use::read);
    return memory;
  }
  // With the counters of the Hopper kernel.
  emulator::GlobalMemory row_stats(const Sm90BackwardWorkspace& parts) const {
    emulator::GlobalMemory memory = row_stats();
    memory.add_array("dq_turn", part(parts.turns), parts.turn_bytes, Use::write);
    return memory;
  }
  emulator::GlobalMemory sink_gradients() const {
    emulator::GlobalMemory memory;
    memory.add_array("row statistics", workspace_, workspace_bytes_, Use::read);
    const auto bytes = static_cast<std::size_t>(a_.q.shape[1]) * sizeof(float);
    if (a_.sinks != nullptr) memory.add_array("sinks", a_.sinks, bytes, Use::read);
    if (a_.dsinks != nullptr) memory.add_array("dsinks", a_.dsinks, bytes, Use::write);
    return memory;
  }
  emulator::GlobalMemory pass(BackwardPass pass) const {
    emulator::GlobalMemory memory = operands();
    if (pass == BackwardPass::dbias) {
      if (a_.dbias.data != nullptr) add(memory, "dbias", ConstTensor(a_.dbias), Use::write);
    } else if (pass == BackwardPass::dq) {
      add(memory, "dq", ConstTensor(a_.dq), Use::write);
    } else {
      add(memory, "dk", ConstTensor(a_.dk), Use::write);
      add(memory, "dv", ConstTensor(a_.dv), Use::write);
    }
    return memory;
  }
  emulator::GlobalMemory sm90_backward(const Sm90BackwardWorkspace& parts) const {
    emulator::GlobalMemory memory = operands();
    add(memory, "dk", ConstTensor(a_.dk), Use::write);
    add(memory, "dv", ConstTensor(a_.dv), Use::write);
    memory.add_array("dq_turn", part(parts.turns), parts.turn_bytes, Use::write);
    memory.add_array("dq_sum", part(parts.dq_sum), parts.total - parts.dq_sum, Use::write);
    return memory;
  }
  emulator::GlobalMemory finish_dq(const Sm90BackwardWorkspace& parts) const {
    emulator::GlobalMemory memory;
    add_seqlens(memory);
    memory.add_array("dq_sum", part(parts.dq_sum), parts.total - parts.dq_sum, Use::read);
    add(memory, "dq", ConstTensor(a_.dq), Use::write);
    return memory;
  }

 private:
  static void add(emulator::GlobalMemory& memory, const char* name, const ConstTensor& t, Use use) {
    memory.add({name, t.data, size_bytes(t.dtype), t.shape, t.stride, use});
  }
  const std::byte* part(std::size_t offset) const {
    return static_cast<const std::byte*>(workspace_) + offset;
  }
  emulator::GlobalMemory operands() const {
    emulator::GlobalMemory memory = common(Use::read);
    add(memory, "q", a_.q, Use::read);
    add(memory, "k", a_.k, Use::read);
    add(memory, "v", a_.v, Use::read);
    if (a_.bias.data != nullptr) add(memory, "bias", a_.bias, Use::read);
    if (a_.mask.data != nullptr) add(memory, "mask", a_.mask, Use::read);
    const std::int64_t sequences = sequence_count(forward_arguments(a_));
    const auto slopes = static_cast<std::size_t>(
        std::max<std::int64_t>(sequences - 1, 0) * a_.alibi_batch_stride + a_.q.shape[1]);
    if (a_.alibi_slopes != nullptr)
      memory.add_array("alibi_slopes", a_.alibi_slopes, slopes * sizeof(float), Use::read);
    add_block_mask(memory, a_.block_mask);
    return memory;
  }
  emulator::GlobalMemory common(Use of_workspace) const {
    emulator::GlobalMemory memory;
    memory.add_array("row statistics", workspace_, workspace_bytes_, of_workspace);
    add(memory, "dout", a_.dout, Use::read);
    add_seqlens(memory);
    return memory;
  }
  void add_seqlens(emulator::GlobalMemory& memory) const {
    const auto spans = static_cast<std::size_t>(a_.sequences + 1) * sizeof(std::int32_t);
    if (a_.cu_seqlens_q != nullptr)
      memory.add_array("cu_seqlens_q", a_.cu_seqlens_q, spans, Use::read);
    if (a_.cu_seqlens_kv != nullptr)
      memory.add_array("cu_seqlens_kv", a_.cu_seqlens_kv, spans, Use::read);
    for (const auto& [name, array] : {std::pair{"seqlens_q", a_.seqlens_q},
                                      {"seqlens_kv", a_.seqlens_kv},
                                      {"leftpad_q", a_.leftpad_q},
                                      {"leftpad_kv", a_.leftpad_kv}})
      if (array != nullptr)
        memory.add_array(name, array,
                         static_cast<std::size_t>(a_.q.shape[0]) * sizeof(std::int32_t), Use::read);
  }

  const BackwardArguments& a_;
  void* workspace_;
  std::size_t workspace_bytes_;
};

EmulatedFunction row_stats_function(const emulator::EmulatedRowStats& kernel, const GpuInfo& chip,
                                    emulator::GlobalMemory memory) {
  return {"row_stats " + brief_text(kernel.config), chip.arch,
          [&kernel](const void* p) { kernel.entry(*static_cast<const RowStatsParams*>(p)); }, false,
          std::move(memory)};
}

EmulatedFunction sink_function(const emulator::EmulatedRowStats& kernel, const GpuInfo& chip,
                               const BackwardMemory& memory) {
  return {"sink_gradients " + brief_text(kernel.config), chip.arch,
          [&kernel](const void* p) {
            kernel.sink_gradients(*static_cast<const SinkGradientParams*>(p));
          },
          false, memory.sink_gradients()};
}

}  // namespace

Status run_emulated_backward(const ChosenSm80Backward& chosen, const GpuInfo& chip,
                             const Problem& run_problem, const BackwardArguments& arguments,
                             void* workspace) {
  const auto* const row_stats = emulator::find_row_stats(chosen.row_stats);
  const auto* const dkv = emulator::find_sm80_backward(chosen.dkv);
  const auto* const dq = emulator::find_sm80_backward(chosen.dq);
  const auto* const dbias = chosen.dbias ? emulator::find_sm80_backward(*chosen.dbias) : dq;
  for (const auto* kernel : {dkv, dq, dbias})
    if (kernel == nullptr || row_stats == nullptr)
      return unsupported("the kernel", brief_text(kernel == dkv ? chosen.dkv : chosen.dq),
                         "those of the emulator");
  const BackwardMemory memory(run_problem, arguments, workspace);
  EmulatedFunction stats_function = row_stats_function(*row_stats, chip, memory.row_stats());
  const auto function_of = [&](const emulator::EmulatedSm80Backward& kernel) {
    return EmulatedFunction{
        "sm80_backward " + brief_text(kernel.config), chip.arch,
        [&kernel](const void* p) { kernel.entry(*static_cast<const BackwardParams*>(p)); }, false,
        memory.pass(kernel.config.pass)};
  };
  EmulatedFunction dkv_function = function_of(*dkv), dq_function = function_of(*dq);
  EmulatedFunction dbias_function = function_of(*dbias);
  EmulatedFunction dsinks_function = sink_function(*row_stats, chip, memory);
  const Gpu gpu{chip, &emulated_driver(), nullptr};
  return launch_sm80_backward(
      gpu,
      {.config = chosen,
       .shared = {.row_stats = {stats_function.handle()},
                  .dsinks = {dsinks_function.handle(), row_stats::kSinkSmemBytes}},
       .dkv = {dkv_function.handle(), sm80::smem_bytes(dkv->config)},
       .dq = {dq_function.handle(), sm80::smem_bytes(dq->config)},
       .dbias = {dbias_function.handle(), sm80::smem_bytes(dbias->config)}},
      run_problem, arguments, workspace, nullptr);
}

Status run_emulated_sm90_backward(const ChosenSm90Backward& chosen, const GpuInfo& chip,
                                  const Problem& run_problem, const BackwardArguments& arguments,
                                  void* workspace) {
  const auto* const row_stats = emulator::find_row_stats(chosen.row_stats);
  const auto* const kernels = emulator::find_sm90_backward(chosen.config);
  if (kernels == nullptr || row_stats == nullptr)
    return unsupported("the kernel", brief_text(chosen.config), "those of the emulator");
  const BackwardMemory memory(run_problem, arguments, workspace);
  const Sm90BackwardWorkspace parts =
      sm90_backward_workspace(run_problem, arguments.q.shape[2], chosen);
  const auto function_of = [&](const char* name, void (*entry)(const Sm90BackwardParams&),
                               const emulator::GlobalMemory& of_launch) {
    return EmulatedFunction{
        name + brief_text(chosen.config), chip.arch,
        [entry](const void* p) { entry(*static_cast<const Sm90BackwardParams*>(p)); }, false,
        of_launch};
  };
  EmulatedFunction stats_function = row_stats_function(*row_stats, chip, memory.row_stats(parts));
  EmulatedFunction backward =
      function_of("sm90_backward ", kernels->backward, memory.sm90_backward(parts));
  backward.registers = sm90::backward::launch_registers(chosen.config);
  EmulatedFunction finish_dq =
      function_of("sm90_finish_dq ", kernels->finish_dq, memory.finish_dq(parts));
  EmulatedFunction dsinks = sink_function(*row_stats, chip, memory);
  const Gpu gpu{chip, &emulated_driver(), nullptr};
  return launch_sm90_backward(
      gpu,
      {.config = chosen,
       .shared = {.row_stats = {stats_function.handle()},
                  .dsinks = {dsinks.handle(), row_stats::kSinkSmemBytes}},
       .backward = {backward.handle(), sm90::backward::smem_bytes(chosen.config)},
       .finish_dq = {finish_dq.handle(), sm90::backward::finish_smem_bytes(chosen.config)}},
      run_problem, arguments, workspace, nullptr);
}

}  // namespace octavo
