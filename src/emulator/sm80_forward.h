// The sm80 forward kernels that are compiled for the emulator.
#pragma once

#include <vector>

#include "config/sm80_forward.h"
#include "device/core/params.cuh"

namespace octavo::emulator {

struct EmulatedSm80Forward {
  Sm80ForwardConfig config;
  void (*entry)(const ForwardParams&) = nullptr;
};

// Every shipped configuration, and some for the paths that no shipped one takes: scales per row of
// K, narrow loads, FP32 output. All say one chip: nothing that is compiled depends on it.
const std::vector<EmulatedSm80Forward>& sm80_forward_kernels();

}  // namespace octavo::emulator
