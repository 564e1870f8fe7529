// SPDX-License-Identifier: Apache-2.0
// The decode kernels compiled for the emulator.
#pragma once

#include <vector>

#include "config/decode.h"
#include "device/decode/params.cuh"

namespace octavo::emulator {

struct EmulatedDecode {
  DecodeConfig config;
  void (*entry)(const decode::Params&) = nullptr;
  void (*combine)(const decode::Params&) = nullptr;  // adds up its partial results
};

// Kernels with small tiles for every type of cache, with one and with two mma tiles of query rows,
// each for Hopper, where grids overlap, and for older chips.
const std::vector<EmulatedDecode>& decode_kernels();

}  // namespace octavo::emulator
