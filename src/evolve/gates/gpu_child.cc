// SPDX-License-Identifier: Apache-2.0
#include "evolve/gates/gpu_child.h"

#include <fmt/format.h>

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "evidence/ladder/ladder_cases.h"
#include "gpu/driver/context.h"
#include "gpu/driver/driver.h"

namespace octavo::evolve {
namespace {

// Fills free memory of the GPU with NaNs, up to 8 GiB.
Status poison_gpu_memory(const Gpu& gpu, Device device) {
  constexpr std::size_t kPart = std::size_t{256} << 20, kMostParts = 32;
  const CurrentContext current(gpu);
  OCTAVO_RETURN_IF_ERROR(current.status());
  std::vector<Buffer> parts;
  while (parts.size() < kMostParts) {
    Result<Buffer> part = Buffer::make(device, kPart);
    if (!part.ok()) break;  // the memory is full
    const auto begin = reinterpret_cast<std::uintptr_t>(part->data());
    OCTAVO_GPU_TRY(*gpu.driver, gpu.driver->memset_d8_async(begin, 0xff, kPart, nullptr),
                   "cuMemsetD8Async");
    parts.push_back(std::move(part).value());
  }
  return synchronize(device);
}

}  // namespace

GateOutcome judge_on_gpu(const Subject& subject, const Context& context, std::string_view gate,
                         const std::function<GateOutcome()>& judge) {
  Limits limits = limits_of(context);
  limits.gpu = true;
  limits.isolation = context.task.gpu_isolation;
  const ChildResult child = run_isolated(limits, [&] {
    use_cache_of(context);
    const Result<const Gpu*> gpu = open_gpu(context.task.device.index);
    if (!gpu.ok()) return to_answer(not_done(gpu.status().message()));
    if (const Status poisoned = poison_gpu_memory(**gpu, context.task.device); !poisoned.ok())
      return to_answer(not_done(poisoned.message()));
    if (const Status used = use_source_overlay(subject.patched.overlay()); !used.ok())
      return to_answer(rejected(used.message()));
    return to_answer(judge());
  });
  return outcome_of(child, gate);
}

evidence::MakeKernel kernel_of(const KernelConfig& config) {
  if (const auto* ladder = std::get_if<LadderConfig>(&config))
    return evidence::kernel_of_ladder(*ladder);
  return evidence::kernel_of_config(text_of(config));
}

void find_device(Task& task, const std::optional<Device>& wanted) {
  task.device = wanted.value_or(Device{Device::Kind::cpu, 0});
  if (wanted && wanted->kind != Device::Kind::cuda) return;
  Limits limits;
  limits.gpu = true;
  for (const Isolation isolation : {Isolation{true, true}, {false, true}, {false, false}}) {
    limits.isolation = isolation;
    const ChildResult child = run_isolated(limits, [&wanted] {
      for (const DeviceInfo& info : devices())
        if (info.available && info.device.kind == Device::Kind::cuda &&
            (!wanted || info.device.index == wanted->index))
          return std::to_string(info.device.index);
      return std::string();
    });
    if (!child.finished() || child.output.empty()) continue;
    task.device = {Device::Kind::cuda, std::atoi(child.output.c_str())};
    task.gpu_isolation = isolation;
    return;
  }
}

}  // namespace octavo::evolve
