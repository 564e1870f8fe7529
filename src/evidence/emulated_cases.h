// One kernel of the emulator on problems made for it: what mutants and measures share.
#pragma once

#include <string>
#include <vector>

#include "emulator/machine.h"
#include "emulator/sm80_forward.h"
#include "evidence/cases.h"
#include "evidence/inputs.h"

namespace octavo::evidence {

// A kernel by its number in the list, its configuration, or all of them ("all").
Result<std::vector<const emulator::EmulatedSm80Forward*>> kernels_by_name(const std::string& name);

// Small problems that take every path of a kernel: more steps than it has buffers, rows and keys
// that end inside a tile, both ends of the mask, columns that pad the head dimension.
std::vector<Case> cases_for(const Sm80Forward& config);

// A case with its memory, ready to be run again and again.
struct EmulatedCase {
  Case posed;
  Inputs inputs;
  Problem problem;
};
Result<EmulatedCase> make_emulated_case(const Case& c);

// Runs the kernel on it, into fresh poison.
void run_emulated_case(const emulator::EmulatedSm80Forward& kernel, EmulatedCase& c,
                       const emulator::Settings& settings,
                       const std::function<void(const emulator::Machine&)>& then);

}  // namespace octavo::evidence
