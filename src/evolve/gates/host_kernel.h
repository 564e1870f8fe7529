// SPDX-License-Identifier: Apache-2.0
// The kernel of a candidate for the emulator: one that is compiled in, or its sources compiled by
// the host's compiler into a shared object, which calls the instructions that the library emulates.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "emulator/kernels/ladder.h"
#include "emulator/kernels/sm80_forward.h"
#include "emulator/kernels/sm90_forward.h"
#include "evidence/cases/emulated_cases.h"
#include "evidence/cases/runner.h"
#include "evolve/gates/kernel_family.h"
#include "evolve/isolation/isolate.h"

namespace octavo::evolve {

// The host's compiler: $OCTAVO_CXX, or the first of c++, g++ and clang++ on the PATH; empty: none.
std::string host_compiler();

struct HostBuild {
  enum class End : std::uint8_t { built, refused, no_compiler };
  End end = End::refused;
  std::string reason;   // one sentence
  std::string library;  // the path of the shared object
};
// Compiles a configuration from the embedded sources with the overlay, in a child process that may
// write to `limits.directory` alone.
HostBuild build_host_kernel(const KernelConfig& config, const SourceOverlay& overlay,
                            const Limits& limits);

using EmulatedKernel = std::variant<emulator::EmulatedSm80Forward, emulator::EmulatedSm90Forward,
                                    emulator::EmulatedLadder>;

// The kernel of this configuration that the library was built with, if it has it.
std::optional<EmulatedKernel> built_in_kernel(const KernelConfig& config);
// Loads what build_host_kernel() made. It is a candidate's code: only in a child that is meant for
// it. Shared objects are never unloaded.
Result<EmulatedKernel> load_host_kernel(const KernelConfig& config, const std::string& library);

// Runs it on the emulated GPU that its family is tested on. `then` gets the findings of each
// launch.
Status run_emulated_kernel(const EmulatedKernel& kernel, const Arguments& arguments,
                           const Options& options, const emulator::Settings& settings,
                           const EmulatorThen& then);
// For checks: a hazard is an error, whose text is the report.
evidence::Runner emulated_runner(const EmulatedKernel& kernel,
                                 std::optional<std::uint64_t> schedule);

}  // namespace octavo::evolve
