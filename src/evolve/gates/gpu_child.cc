// SPDX-License-Identifier: Apache-2.0
#include "evolve/gates/gpu_child.h"

#include <fmt/format.h>

#include <vector>

#include "evidence/ladder/ladder_cases.h"
#include "gpu/driver/context.h"

namespace octavo::evolve {
namespace {

// Fills free memory of the GPU with NaNs, up to 2 GiB.
Status poison_gpu_memory(Device device) {
  constexpr std::size_t kPart = std::size_t{256} << 20, kMostParts = 8;
  const std::vector<std::byte> nans(kPart, std::byte{0xff});
  std::vector<Buffer> parts;
  while (parts.size() < kMostParts) {
    Result<Buffer> part = Buffer::make(device, kPart);
    if (!part.ok()) break;  // the memory is full
    if (const Status written = part->upload(nans.data(), kPart); !written.ok()) return written;
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
    if (const Result<const Gpu*> gpu = open_gpu(context.task.device.index); !gpu.ok())
      return to_answer(not_done(gpu.status().message()));
    if (const Status poisoned = poison_gpu_memory(context.task.device); !poisoned.ok())
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

}  // namespace octavo::evolve
