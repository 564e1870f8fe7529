// The oracle on a GPU, and its comparison with the oracle on the CPU.
#pragma once

#include "evidence/oracle/oracle.h"

namespace octavo::evidence {

// device/oracle/oracle.cuh on arguments in host memory; an error if it cannot run there.
Result<Oracle> gpu_oracle(Device device);

// The distance of two truths of one case, relative to the difference that two orders of summation
// in fp64 may have: up to 1 they agree.
double oracle_difference(const Truth& a, const Truth& b);

}  // namespace octavo::evidence
