// A launch of a GPU kernel in the emulator: what the plan, the mutants and the measures share.
#pragma once

#include <cstddef>
#include <vector>

#include "emulator/quantize.h"
#include "emulator/sm80_forward.h"
#include "emulator/sm90_forward.h"
#include "gpu/prepare_operands.h"
#include "octavo/octavo.hpp"
#include "runtime/emulated_driver.h"

namespace octavo {

// The chip that a device stands for, as the choosers see it; null: none of those emulated.
const GpuInfo* emulated_chip(Device device);

// The kernel that serves a problem whose rows are aligned so; null: none of those compiled in.
const emulator::EmulatedSm80Forward* emulated_sm80_forward(const Problem& problem,
                                                           const GpuInfo& chip, int alignment);
// The same of Hopper's, where the plan of a GPU would take one and TMA reaches the tensors.
const emulator::EmulatedSm90Forward* emulated_sm90_forward(const Problem& problem,
                                                           const GpuInfo& chip);

// Runs it on arguments in host memory, and hands over the machine with its findings.
Status run_emulated(const emulator::EmulatedSm80Forward& kernel, const GpuInfo& chip,
                    const Problem& run_problem, const Arguments& arguments,
                    const emulator::Settings& settings, const EmulatorThen& then);
Status run_emulated(const emulator::EmulatedSm90Forward& kernel, const GpuInfo& chip,
                    const Problem& run_problem, const Arguments& arguments,
                    const emulator::Settings& settings, const EmulatorThen& then);

// The arguments as that kernel wants them: what a precision rounds rounded, 8-bit V transposed,
// into `memory`, by the emulator's own quantizers. Their findings are a failure.
Result<Arguments> with_operands_for(const Sm90ForwardConfig& config, const Problem& run_problem,
                                    const Arguments& arguments, std::vector<std::byte>& memory);

// In place of a quantizer that would be chosen: one that the emulator has, if any.
QuantizeConfig emulated_quantize(const QuantizeConfig& chosen, std::int64_t head_dim);

// The same for the quantizers of a call, whose configurations are some of the emulator's.
void run_emulated_quantizer(const emulator::EmulatedQuantize& kernel, const GpuInfo& chip,
                            const QuantizeLaunch& pass, const emulator::Settings& settings,
                            const EmulatorThen& then);

}  // namespace octavo
