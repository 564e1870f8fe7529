// SPDX-License-Identifier: Apache-2.0
// Launches single kernels in the emulator, for mutants, measurements and tests.
#pragma once

#include <cstddef>
#include <vector>

#include "emulator/kernels/append.h"
#include "emulator/kernels/decode.h"
#include "emulator/kernels/ladder.h"
#include "emulator/kernels/quantize.h"
#include "emulator/kernels/sm80_forward.h"
#include "emulator/kernels/sm90_forward.h"
#include "gpu/cache/append.h"
#include "gpu/quantize/prepare_operands.h"
#include "octavo/octavo.hpp"
#include "runtime/emulated/emulated_driver.h"

namespace octavo {

EmulatedFunction emulated_function(const emulator::EmulatedSm80Forward& kernel, int arch);
EmulatedFunction emulated_function(const emulator::EmulatedSm90Forward& kernel, int arch);
EmulatedFunction emulated_function(const emulator::EmulatedQuantize& kernel, int arch);
EmulatedFunction emulated_function(const emulator::EmulatedDecode& kernel, int arch);
// The kernel that combines its partial results.
EmulatedFunction emulated_combine(const emulator::EmulatedDecode& kernel, int arch);
EmulatedFunction emulated_function(const emulator::EmulatedAppend& kernel, int arch);
EmulatedFunction emulated_function(const emulator::EmulatedLadder& kernel, int arch);

// Lets a kernel read the lists and bits of a block mask.
void add_block_mask(emulator::GlobalMemory& memory, const BlockMask& block_mask);
// The memory that a forward kernel with these arguments, or a quantizer, may access.
emulator::GlobalMemory memory_of(const Problem& run_problem, const Arguments& arguments);
emulator::GlobalMemory memory_of(const QuantizeLaunch& launch);
emulator::GlobalMemory memory_of(const AppendCall& call);
// The memory that the decode kernel may access, or, with `combines`, the kernel that combines its
// partial results.
emulator::GlobalMemory memory_of_decode(const Problem& run_problem, const Arguments& arguments,
                                        Workspace workspace, bool combines);

// Runs the kernel on arguments in host memory, then calls `then` with the machine's findings.
Status run_emulated(const emulator::EmulatedSm80Forward& kernel, const GpuInfo& chip,
                    const Problem& run_problem, const Arguments& arguments,
                    const emulator::Settings& settings, const EmulatorThen& then);
Status run_emulated(const emulator::EmulatedSm90Forward& kernel, const GpuInfo& chip,
                    const Problem& run_problem, const Arguments& arguments,
                    const emulator::Settings& settings, const EmulatorThen& then);
Status run_emulated(const emulator::EmulatedLadder& kernel, const GpuInfo& chip,
                    const Problem& run_problem, const Arguments& arguments,
                    const emulator::Settings& settings, const EmulatorThen& then);
// Runs the decode kernel and the kernel that combines its partial results.
Status run_emulated(const emulator::EmulatedDecode& kernel, const GpuInfo& chip,
                    const Problem& run_problem, const Arguments& arguments,
                    const emulator::Settings& settings, const EmulatorThen& then);
Status run_emulated(const emulator::EmulatedQuantize& kernel, const GpuInfo& chip,
                    const QuantizeLaunch& launch, const emulator::Settings& settings,
                    const EmulatorThen& then);
Status run_emulated(const emulator::EmulatedAppend& kernel, const GpuInfo& chip,
                    const AppendCall& call, const emulator::Settings& settings,
                    const EmulatorThen& then);

// Prepares arguments for the kernel of `config` with the emulator's quantizers. Converted operands,
// such as a transposed 8-bit V, are stored in `memory`. Hazards are an error.
Result<Arguments> with_operands_for(const Sm90ForwardConfig& config, const Problem& run_problem,
                                    const Arguments& arguments, std::vector<std::byte>& memory);

}  // namespace octavo
