// The oracle on a GPU, and how it is held against the one on the CPU.
#pragma once

#include "evidence/oracle.h"

namespace octavo::evidence {

// device/oracle/oracle.cuh on arguments in host memory; or why it cannot run there.
Result<Oracle> gpu_oracle(Device device);

// How far two truths of one case are apart, over what two orders of summation in fp64 may differ
// by: up to 1 they agree.
double oracle_difference(const Truth& a, const Truth& b);

}  // namespace octavo::evidence
