// SPDX-License-Identifier: Apache-2.0
// The quantizers compiled for the emulator.
#pragma once

#include <vector>

#include "config/quantize.h"
#include "device/quantize/params.cuh"

namespace octavo::emulator {

struct EmulatedQuantize {
  QuantizeConfig config;
  void (*entry)(const OperandsParams&) = nullptr;
};

// Quantizers for every source, format and group with rows of up to 64 columns and 16-byte loads;
// some with rows of up to 256 columns, narrow loads or rotated rows; and those that quantize Q, K
// and V together.
const std::vector<EmulatedQuantize>& quantize_kernels();

// A kernel of this list with the same result as `wanted`, for rows of head_dim columns; null: there
// is none.
const EmulatedQuantize* find_quantize(const QuantizeConfig& wanted, int head_dim);

}  // namespace octavo::emulator
