// Runs checks of a candidate in the emulator: the kernel is built if the library does not have it,
// and it runs in a child that may do nothing else.
#pragma once

#include <functional>

#include "evolve/gates/host_kernel.h"
#include "evolve/gates/subject.h"

namespace octavo::evolve {

using JudgeKernel = std::function<GateOutcome(const EmulatedKernel&)>;

// "Not done" if there is no compiler.
GateOutcome judge_emulated(const Subject& subject, const Context& context, std::string_view gate,
                           const JudgeKernel& judge);

// Runs the cases under each schedule, against fp64 attention. Outputs are poisoned before each run
// and have guards. The first failure is the reason.
GateOutcome check_emulated(const EmulatedKernel& kernel, const std::vector<evidence::Case>& cases,
                           const std::vector<std::optional<std::uint64_t>>& schedules);

}  // namespace octavo::evolve
