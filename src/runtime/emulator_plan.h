// Plans whose kernels run in the emulator.
#pragma once

#include <memory>

#include "runtime/backend.h"
#include "runtime/backward_plan.h"

namespace octavo {

Result<std::shared_ptr<const Plan::Impl>> make_emulator_plan(const Problem& problem, Device device);
Result<std::shared_ptr<const BackwardPlan::Impl>> make_emulator_backward_plan(
    const Problem& problem, Device device);

// "sm_89 on the CPU, 58 SMs, 31 kernels", for an emulator device.
std::string describe_emulator(Device device);

}  // namespace octavo
