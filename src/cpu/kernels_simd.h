// SPDX-License-Identifier: Apache-2.0
// The SIMD kernels that this machine can run, the best first. Built only with Highway.
#pragma once

#include <vector>

#include "cpu/kernels.h"

namespace octavo::cpu {

std::vector<const Kernels*> simd_kernels();

}  // namespace octavo::cpu
