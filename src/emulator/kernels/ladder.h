// SPDX-License-Identifier: Apache-2.0
// The kernels of the ladder compiled for the emulator.
#pragma once

#include <vector>

#include "config/ladder.h"
#include "device/ladder/problem.cuh"

namespace octavo::emulator {

struct EmulatedLadder {
  LadderConfig config;
  void (*entry)(const ladder::Params&) = nullptr;
};

// The rungs in order, each with head_dim 64 and then 128.
const std::vector<EmulatedLadder>& ladder_kernels();

}  // namespace octavo::emulator
