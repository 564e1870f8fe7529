// Helpers of all emulator plans: the settings of a run, and its findings as an error.
#pragma once

#include "emulator/machine.h"
#include "octavo/octavo.hpp"

namespace octavo {

// With the seed of set_emulator_schedule().
emulator::Settings emulator_settings();

Status emulator_hazards(const emulator::Report& report, const emulator::Settings& settings);

}  // namespace octavo
