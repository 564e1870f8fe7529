// The SIMD kernels this machine can run, the best first. Present only where Highway is.
#pragma once

#include <vector>

#include "cpu/kernels.h"

namespace octavo::cpu {

std::vector<const Kernels*> simd_kernels();

}  // namespace octavo::cpu
