// SPDX-License-Identifier: Apache-2.0
// Plans of the backward pass that run on a GPU or in the emulator.
#pragma once

#include <memory>

#include "runtime/plan/backward_plan.h"

namespace octavo {

// `problem` is validated; `device` is a GPU or an emulated one.
Result<std::shared_ptr<const BackwardPlan::Impl>> make_gpu_backward_plan(const Problem& problem,
                                                                         Device device);

// The same, only for an emulated GPU.
Result<std::shared_ptr<const BackwardPlan::Impl>> make_emulator_backward_plan(
    const Problem& problem, Device device);

}  // namespace octavo
