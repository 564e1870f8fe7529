// The quantizers that are compiled for the emulator.
#pragma once

#include <vector>

#include "config/quantize.h"
#include "device/quantize/params.cuh"

namespace octavo::emulator {

struct EmulatedQuantize {
  QuantizeConfig config;
  void (*entry)(const OperandsParams&) = nullptr;
};

// Every source, format and group for rows up to 64 columns at 16 bytes a load, some of each for
// rows up to 256, narrow loads and rotated rows, and those of one launch for Q, K and V.
const std::vector<EmulatedQuantize>& quantize_kernels();

// In place of `wanted`: the same result from a kernel of this list, for rows of so many columns;
// null: there is none.
const EmulatedQuantize* find_quantize(const QuantizeConfig& wanted, int head_dim);

}  // namespace octavo::emulator
