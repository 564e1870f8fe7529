// Runs the backward kernels in the emulator.
#pragma once

#include "gpu/backward/sm80_backward.h"
#include "octavo/octavo.hpp"
#include "runtime/emulated_driver.h"

namespace octavo {

// Runs the three launches on arguments in host memory, and calls `then` after each with the
// machine's findings. `workspace`: row_stats_bytes() bytes.
Status run_emulated_backward(const ChosenSm80Backward& chosen, const GpuInfo& chip,
                             const Problem& run_problem, const BackwardArguments& arguments,
                             void* workspace, const emulator::Settings& settings,
                             const EmulatorThen& then);

}  // namespace octavo
