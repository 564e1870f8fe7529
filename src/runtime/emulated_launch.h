// A launch of a GPU kernel in the emulator: what the plan, the mutants and the measures share.
#pragma once

#include "emulator/machine.h"
#include "emulator/quantize.h"
#include "emulator/sm80_forward.h"
#include "gpu/prepare_operands.h"
#include "octavo/octavo.hpp"

namespace octavo {

// The chip that is emulated, as the chooser sees it.
int emulated_sms();

// The kernel that serves a problem whose rows are aligned so; null: none of those compiled in.
const emulator::EmulatedSm80Forward* emulated_sm80_forward(const Problem& problem, int alignment);

// Runs it on arguments in host memory, and hands over the machine with its findings.
void run_emulated(const emulator::EmulatedSm80Forward& kernel, const Problem& posed,
                  const Arguments& arguments, const emulator::Settings& settings,
                  const std::function<void(const emulator::Machine&)>& then);

// The same for the quantizers of a call, whose configurations are some of the emulator's.
void run_emulated_quantizer(const emulator::EmulatedQuantize& kernel, const QuantizeLaunch& pass,
                            const emulator::Settings& settings,
                            const std::function<void(const emulator::Machine&)>& then);

}  // namespace octavo
