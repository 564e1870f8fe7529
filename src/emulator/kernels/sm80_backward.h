// SPDX-License-Identifier: Apache-2.0
// The sm80 backward kernels compiled for the emulator.
#pragma once

#include <vector>

#include "config/row_stats.h"
#include "config/sm80_backward.h"
#include "device/backward/params.cuh"
#include "device/backward/row_stats.cuh"
#include "device/backward/sink_gradients.cuh"

namespace octavo::emulator {

// The parameters are those of the configuration: BackwardParams, or a type that extends them.
struct EmulatedSm80Backward {
  Sm80BackwardConfig config;
  void (*entry)(const BackwardParams&) = nullptr;
};
struct EmulatedRowStats {
  RowStatsConfig config;
  void (*entry)(const RowStatsParams&) = nullptr;
  void (*sink_gradients)(const SinkGradientParams&) = nullptr;
};

// In f16 all tiles of config/sm80_backward_tiles.h. In bf16, and with narrow loads, only the
// narrowest and the widest tiles; the widest can replace all others. The same again with all
// modifiers, and with a block mask. All have the same arch, as no compiled code depends on it.
const std::vector<EmulatedSm80Backward>& sm80_backward_kernels();
const std::vector<EmulatedRowStats>& row_stats_kernels();

// The kernel of this configuration, whatever its arch; null if it is not compiled in.
const EmulatedSm80Backward* find_sm80_backward(Sm80BackwardConfig config);
const EmulatedRowStats* find_row_stats(RowStatsConfig config);

}  // namespace octavo::emulator
