// SPDX-License-Identifier: Apache-2.0
// Children that run a candidate on the GPU, with the library's own code over the candidate's
// sources.
#pragma once

#include <functional>
#include <optional>

#include "evidence/cases/runner.h"
#include "evolve/gates/subject.h"

namespace octavo::evolve {

// Sets the task's device to `wanted`, or else to the first GPU, if there is one. Children look for
// it, because a process that has opened a GPU cannot pass it on. Some drivers do not work with the
// files or the network of a namespace, so the GPU is looked for with fewer and fewer of them.
void find_device(Task& task, const std::optional<Device>& wanted);

// Opens the GPU in a child, overwrites its free memory, so that no earlier result is left in it,
// puts the candidate's sources in place and calls `judge`. "Not done" without a GPU.
GateOutcome judge_on_gpu(const Subject& subject, const Context& context, std::string_view gate,
                         const std::function<GateOutcome()>& judge);

// The candidate's kernel for checks.
evidence::MakeKernel kernel_of(const KernelConfig& config);

}  // namespace octavo::evolve
