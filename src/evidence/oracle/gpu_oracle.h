// SPDX-License-Identifier: Apache-2.0
// The oracle on a GPU, and its comparison with the oracle on the CPU.
#pragma once

#include "evidence/oracle/oracle.h"

namespace octavo::evidence {

// Runs device/oracle/oracle.cuh on arguments in host memory. It is an error if the oracle cannot
// run on the device.
Result<Oracle> gpu_oracle(Device device);

// The difference between the results of two oracles, relative to what different orders of summation
// in fp64 may cause. Up to 1 they agree.
double oracle_difference(const Truth& a, const Truth& b);

}  // namespace octavo::evidence
