// SPDX-License-Identifier: Apache-2.0
// The Hopper backward kernels compiled for the emulator.
#pragma once

#include <vector>

#include "config/sm90_backward.h"
#include "device/sm90/backward/params.cuh"

namespace octavo::emulator {

struct EmulatedSm90Backward {
  Sm90BackwardConfig config;
  void (*backward)(const Sm90BackwardParams&) = nullptr;
  void (*finish_dq)(const Sm90BackwardParams&) = nullptr;
};

// Every configuration without modifiers that a GPU plan uses in f16, those of 64, 128 and 256
// columns also in bf16, and one of these three widths with all modifiers.
const std::vector<EmulatedSm90Backward>& sm90_backward_kernels();

// The kernels of this configuration; null if they are not compiled in.
const EmulatedSm90Backward* find_sm90_backward(const Sm90BackwardConfig& config);

}  // namespace octavo::emulator
