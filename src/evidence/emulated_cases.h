// The kernels of the emulator, each on problems made for it: what mutants and measures share.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "config/quantize.h"
#include "config/sm80_forward.h"
#include "config/sm90_forward.h"
#include "emulator/machine.h"
#include "evidence/cases.h"
#include "runtime/emulated_driver.h"

namespace octavo::evidence {

// A problem with its memory, ready to be run again and again.
struct EmulatedCase {
  std::string name;
  // Runs the kernel on it, into fresh poison.
  std::function<Status(const emulator::Settings&, const EmulatorThen&)> run;
  // What the last run left.
  std::function<std::vector<std::byte>()> outputs;
};

// A kernel of any family.
struct EmulatedSubject {
  std::string kernel, config, brief;  // as in EmulatedKernel
  std::function<Result<std::vector<EmulatedCase>>()> make_cases;
  std::vector<Case> cases;  // what those are made of
  std::function<Result<EmulatedCase>(const Case&)> make_case;
};

// Those that a name stands for: a number in the list, a configuration, a family, or "all".
Result<std::vector<EmulatedSubject>> subjects_by_name(const std::string& name);

// Small problems that take every path of a kernel: more steps than it has buffers, rows and keys
// that end inside a tile, both ends of the mask, columns that pad the head dimension.
std::vector<Case> cases_for(const Sm80ForwardConfig& config);
// The same, with more tiles than it has places to announce them in, and rows that see no key.
std::vector<Case> cases_for(const Sm90ForwardConfig& config);
// Inputs and scales that an 8-bit configuration is for.
void pose_scales(const Sm90ForwardConfig& config, Case& c);
// Calls whose operands it prepares: rows that end inside a tile, columns that pad a row.
std::vector<Case> cases_for(const QuantizeConfig& config);

// The chip that Hopper's kernels are looked at on: with so few SMs that a CTA gets several tiles.
GpuInfo narrow_sm90_chip();

}  // namespace octavo::evidence
