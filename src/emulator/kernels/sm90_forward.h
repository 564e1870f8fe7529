// SPDX-License-Identifier: Apache-2.0
// The Hopper forward kernels compiled for the emulator.
#pragma once

#include <vector>

#include "config/sm90_forward.h"
#include "device/sm90/params.cuh"

namespace octavo::emulator {

struct EmulatedSm90Forward {
  Sm90ForwardConfig config;
  void (*entry)(const Sm90ForwardParams&) = nullptr;  // 8-bit kernels take the derived parameters
};

// Every row of the table that problems are dispatched to, in both 16-bit types; again for LSE, if
// that needs a different kernel; and some with FP32 output, early launch or pack_gqa. The 8-bit
// rows are in E4M3, with a scale per head and per row of K, and some in E5M2 and INT8 or with other
// outputs. Then come some rows with 16-bit V and 8-bit Q and K, some with 8-bit output or amax, and
// last some with every modifier of the scores.
const std::vector<EmulatedSm90Forward>& sm90_forward_kernels();

}  // namespace octavo::emulator
