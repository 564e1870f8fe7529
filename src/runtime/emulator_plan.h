// Plans whose kernels run in the emulator.
#pragma once

#include <memory>

#include "runtime/backend.h"

namespace octavo {

Result<std::shared_ptr<const Plan::Impl>> make_emulator_plan(const Problem& problem, Device device);

// "sm_89, 31 kernels", or why there is no emulator in this library.
std::string describe_emulator();

}  // namespace octavo
