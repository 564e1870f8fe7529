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

// Small tiles for every type of cache, with one and two tiles of query rows; for Hopper, whose
// grids overlap, and for older chips.
const std::vector<EmulatedDecode>& decode_kernels();

}  // namespace octavo::emulator
