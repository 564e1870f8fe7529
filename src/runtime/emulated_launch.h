// Launches GPU kernels in the emulator, for plans, mutants and measurements.
#pragma once

#include <cstddef>
#include <vector>

#include "emulator/quantize.h"
#include "emulator/sm80_forward.h"
#include "emulator/sm90_forward.h"
#include "gpu/quantize/prepare_operands.h"
#include "octavo/octavo.hpp"
#include "runtime/emulated_driver.h"

namespace octavo {

// The chip that an emulator device emulates; null if there is none.
const GpuInfo* emulated_chip(Device device);

// The compiled-in kernel for a problem whose rows have this alignment; null if there is none.
const emulator::EmulatedSm80Forward* emulated_sm80_forward(const Problem& problem,
                                                           const GpuInfo& chip, int alignment);
// The Hopper kernel, if a GPU plan would use one for tensors that TMA can address.
const emulator::EmulatedSm90Forward* emulated_sm90_forward(const Problem& problem,
                                                           const GpuInfo& chip);

// Runs the kernel on arguments in host memory, then calls `then` with the machine's findings.
Status run_emulated(const emulator::EmulatedSm80Forward& kernel, const GpuInfo& chip,
                    const Problem& run_problem, const Arguments& arguments,
                    const emulator::Settings& settings, const EmulatorThen& then);
Status run_emulated(const emulator::EmulatedSm90Forward& kernel, const GpuInfo& chip,
                    const Problem& run_problem, const Arguments& arguments,
                    const emulator::Settings& settings, const EmulatorThen& then);

// Prepares the arguments for that kernel with the emulator's quantizers: operands are rounded as
// the precision requires and an 8-bit V is transposed, into `memory`. Hazards are an error.
Result<Arguments> with_operands_for(const Sm90ForwardConfig& config, const Problem& run_problem,
                                    const Arguments& arguments, std::vector<std::byte>& memory);

// A compiled-in quantizer that can replace the chosen one, or the chosen one if there is none.
QuantizeConfig emulated_quantize(const QuantizeConfig& chosen, std::int64_t head_dim);

// run_emulated() for one quantizer of a call.
void run_emulated_quantizer(const emulator::EmulatedQuantize& kernel, const GpuInfo& chip,
                            const QuantizeLaunch& pass, const emulator::Settings& settings,
                            const EmulatorThen& then);

}  // namespace octavo
