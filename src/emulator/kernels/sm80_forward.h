// SPDX-License-Identifier: Apache-2.0
// The sm80 forward kernels compiled for the emulator.
#pragma once

#include <vector>

#include "config/sm80_forward.h"
#include "device/core/params.cuh"

namespace octavo::emulator {

struct EmulatedSm80Forward {
  Sm80ForwardConfig config;
  void (*entry)(const ForwardParams&) = nullptr;  // with modifiers: the derived parameters
};

// Every shipped configuration, and some for paths that no shipped one takes: a scale per row of K,
// narrow loads, FP32 output. All have the same arch, as no compiled code depends on it.
const std::vector<EmulatedSm80Forward>& sm80_forward_kernels();

}  // namespace octavo::emulator
