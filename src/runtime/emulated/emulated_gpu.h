// SPDX-License-Identifier: Apache-2.0
// The emulated GPUs: the emulated driver with the kernels that are compiled into the library.
#pragma once

#include <string>

#include "gpu/driver/context.h"
#include "octavo/octavo.hpp"

namespace octavo {

// The GPU of an emulator device.
Result<const Gpu*> emulated_gpu(Device device);

// Describes an emulator device, such as "sm_89 on the CPU, 58 SMs, 31 kernels".
std::string describe_emulator(Device device);

}  // namespace octavo
