#include "runtime/emulated_backward.h"

#include "base/error.h"
#include "emulator/sm80_backward.h"
#include "gpu/backward/sm80_backward.h"
#include "gpu/jit/config_text.h"

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
  emulator::GlobalMemory pass(BackwardPass pass) const {
    emulator::GlobalMemory memory = common(Use::read);
    add(memory, "q", a_.q, Use::read);
    add(memory, "k", a_.k, Use::read);
    add(memory, "v", a_.v, Use::read);
    if (pass == BackwardPass::dq) {
      add(memory, "dq", ConstTensor(a_.dq), Use::write);
    } else {
      add(memory, "dk", ConstTensor(a_.dk), Use::write);
      add(memory, "dv", ConstTensor(a_.dv), Use::write);
    }
    return memory;
  }

 private:
  static void add(emulator::GlobalMemory& memory, const char* name, const ConstTensor& t, Use use) {
    memory.add({name, t.data, size_bytes(t.dtype), t.shape, t.stride, use});
  }
  emulator::GlobalMemory common(Use of_workspace) const {
    emulator::GlobalMemory memory;
    memory.add_array("row statistics", workspace_, workspace_bytes_, of_workspace);
    add(memory, "dout", a_.dout, Use::read);
    const auto spans = static_cast<std::size_t>(a_.sequences + 1) * sizeof(std::int32_t);
    if (a_.cu_seqlens_q != nullptr)
      memory.add_array("cu_seqlens_q", a_.cu_seqlens_q, spans, Use::read);
    if (a_.cu_seqlens_kv != nullptr)
      memory.add_array("cu_seqlens_kv", a_.cu_seqlens_kv, spans, Use::read);
    return memory;
  }

  const BackwardArguments& a_;
  void* workspace_;
  std::size_t workspace_bytes_;
};

}  // namespace

Status run_emulated_backward(const ChosenSm80Backward& chosen, const GpuInfo& chip,
                             const Problem& run_problem, const BackwardArguments& arguments,
                             void* workspace, const emulator::Settings& settings,
                             const EmulatorThen& then) {
  const auto* const row_stats = emulator::find_row_stats(chosen.row_stats);
  const auto* const dkv = emulator::find_sm80_backward(chosen.dkv);
  const auto* const dq = emulator::find_sm80_backward(chosen.dq);
  for (const auto* kernel : {dkv, dq})
    if (kernel == nullptr || row_stats == nullptr)
      return unsupported("the kernel", brief_text(kernel == dkv ? chosen.dkv : chosen.dq),
                         "those of the emulator");
  const BackwardMemory memory(run_problem, arguments, workspace);
  EmulatedFunction stats_function{
      "row_stats " + brief_text(row_stats->config), chip.arch,
      [&](const void* p) { row_stats->entry(*static_cast<const RowStatsParams*>(p)); }, false,
      memory.row_stats()};
  const auto function_of = [&](const emulator::EmulatedSm80Backward& kernel) {
    return EmulatedFunction{
        "sm80_backward " + brief_text(kernel.config), chip.arch,
        [&kernel](const void* p) { kernel.entry(*static_cast<const BackwardParams*>(p)); }, false,
        memory.pass(kernel.config.pass)};
  };
  EmulatedFunction dkv_function = function_of(*dkv), dq_function = function_of(*dq);
  const ExaminedLaunches examined(settings, then);
  const Gpu gpu{chip, &emulated_driver(), nullptr};
  return launch_sm80_backward(
      gpu, {chosen, stats_function.handle(), dkv_function.handle(), dq_function.handle(), ""},
      run_problem, arguments, workspace, nullptr);
}

}  // namespace octavo
