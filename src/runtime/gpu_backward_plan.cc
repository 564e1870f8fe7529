#include "runtime/gpu_backward_plan.h"

#include "attention/error.h"

namespace octavo {

Result<std::shared_ptr<const BackwardPlan::Impl>> make_gpu_backward_plan(const Problem& /*problem*/,
                                                                         Device device) {
  return unsupported("device", name(device), "cpu for the backward pass");
}

}  // namespace octavo
