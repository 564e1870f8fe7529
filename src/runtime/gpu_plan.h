// Plans that run on a GPU.
#pragma once

#include <memory>

#include "runtime/backend.h"

namespace octavo {

Result<std::shared_ptr<const Plan::Impl>> make_gpu_plan(const Problem& problem, Device device);

}  // namespace octavo
