// SPDX-License-Identifier: Apache-2.0
// The emulated kernels, each with problems made for it. Mutants and measures run on these.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "config/decode.h"
#include "config/quantize.h"
#include "config/sm80_forward.h"
#include "config/sm90_forward.h"
#include "emulator/machine.h"
#include "evidence/cases/cases.h"
#include "runtime/emulated/emulated_driver.h"

namespace octavo::evidence {

// A problem with its memory, which can be run repeatedly.
struct EmulatedCase {
  std::string name;
  // Runs the kernel with freshly poisoned outputs.
  std::function<Status(const emulator::Settings&, const EmulatorThen&)> run;
  // The outputs of the last run.
  std::function<std::vector<std::byte>()> outputs;
};

// A kernel of any family.
struct EmulatedSubject {
  std::string kernel, config, brief;  // as in EmulatedKernel
  std::function<Result<std::vector<EmulatedCase>>()> make_cases;
  std::vector<Case> cases;  // what those are made of
  std::function<Result<EmulatedCase>(const Case&)> make_case;
};

// The kernels that a name selects: an index in the list, a configuration, a family, or "all".
Result<std::vector<EmulatedSubject>> subjects_by_name(const std::string& name);

// Small problems that take every path of a kernel: more steps than it has buffers, rows and keys
// that end inside a tile, both ends of the mask, columns that pad the head dimension.
std::vector<Case> cases_for(const Sm80ForwardConfig& config);
// The same, with more tiles than the scheduler can announce at once, and rows that see no key.
std::vector<Case> cases_for(const Sm90ForwardConfig& config);
// Sets the inputs and scales that an 8-bit configuration is for.
void set_8bit_inputs(const Sm90ForwardConfig& config, Case& c);
// Dense and paged caches: several work tiles in a CTA, work tiles that CTAs share, empty sequences,
// page tables and lengths that must be clamped.
std::vector<Case> cases_for(const DecodeConfig& config);
// Calls whose operands the kernel quantizes: rows that end inside a tile, columns that pad a row.
std::vector<Case> cases_for(const QuantizeConfig& config);

// The chip for Hopper kernels, with so few SMs that a CTA gets several tiles.
GpuInfo narrow_sm90_chip();

}  // namespace octavo::evidence
