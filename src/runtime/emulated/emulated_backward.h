// SPDX-License-Identifier: Apache-2.0
// Runs the backward kernels in the emulator.
#pragma once

#include "gpu/backward/sm80_backward.h"
#include "gpu/backward/sm90_backward.h"
#include "octavo/octavo.hpp"
#include "runtime/emulated/emulated_driver.h"

namespace octavo {

// Runs the three launches on arguments in host memory; hazards are an error, unless the calling
// thread examines its launches (ExaminedLaunches). `workspace`: row_stats_bytes() bytes.
Status run_emulated_backward(const ChosenSm80Backward& chosen, const GpuInfo& chip,
                             const Problem& run_problem, const BackwardArguments& arguments,
                             void* workspace);
// The same with the Hopper kernels. The tensors must be addressable by TMA. `workspace`:
// sm90_backward_workspace() bytes at a multiple of 256.
Status run_emulated_sm90_backward(const ChosenSm90Backward& chosen, const GpuInfo& chip,
                                  const Problem& run_problem, const BackwardArguments& arguments,
                                  void* workspace);

}  // namespace octavo
