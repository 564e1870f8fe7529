// SPDX-License-Identifier: Apache-2.0
// Runs checks of a candidate in the emulator: the kernel is built if the library does not have it,
// and it runs in a child that may do nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "evidence/cases/cases.h"
#include "evolve/gates/subject.h"
#if defined(OCTAVO_HAS_EMULATOR)
#include "evolve/gates/host_kernel.h"
#endif

namespace octavo::evolve {

#if !defined(OCTAVO_HAS_EMULATOR)
struct EmulatedKernel {};  // no kernel runs in a library without the emulator
#endif

using JudgeKernel = std::function<GateOutcome(const EmulatedKernel&)>;

// "Not done" if there is no compiler, and in a library without the emulator.
GateOutcome judge_emulated(const Subject& subject, const Context& context, std::string_view gate,
                           const JudgeKernel& judge);

// Runs the cases under each schedule, against fp64 attention. Outputs are poisoned before each run
// and have guards. The first failure is the reason.
GateOutcome check_emulated(const EmulatedKernel& kernel, const std::vector<evidence::Case>& cases,
                           const std::vector<std::optional<std::uint64_t>>& schedules);

}  // namespace octavo::evolve
