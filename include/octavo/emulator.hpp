// SPDX-License-Identifier: Apache-2.0
// The emulator runs the GPU kernels' source on the CPU and checks for hazards. The devices
// "emulator" and "emulator:90" run problems in it; this header tests the kernels themselves.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo {

// False if the library was built without it (it needs Boost.Context).
OCTAVO_API bool has_emulator();

// Sets the order of everything that the instruction set leaves unordered, for later runs. Without a
// seed warps run round-robin and copies complete as late as a wait allows; with a seed both are
// pseudo-random, and the same seed gives the same order.
OCTAVO_API void set_emulator_schedule(std::optional<std::uint64_t> seed);

// The kernels that the emulator can run.
struct EmulatedKernel {
  std::string kernel;  // "sm80_forward"
  std::string config;  // as `octavo kernels` prints it
  std::string brief;   // the fields that differ from the defaults
};
OCTAVO_API std::vector<EmulatedKernel> emulated_kernels();

// The result of one pair of test kernels: a faulty kernel, in which a hazard must be found, and its
// correct twin.
struct SelftestResult {
  std::string hazard;   // "copy in flight"
  std::string what;     // the fault of the faulty kernel
  bool caught = false;  // the hazard was found in the faulty kernel, without a seed
  bool clean = false;   // no hazard was found in the twin, under any schedule
  std::string report;   // of the faulty kernel, or of the twin if it is not clean
  bool passed() const { return caught && clean; }
};
// `schedules`: how many seeds each twin is run with, in addition to none.
OCTAVO_API std::vector<SelftestResult> emulator_selftest(int schedules = 3);

// Compares each emulated instruction with the results recorded on a GPU.
struct ConformanceRow {
  std::string instruction;
  std::int64_t words = 0;  // compared
  std::int64_t wrong = 0;
  bool recorded = false;   // false: the file has nothing about this instruction
  std::string difference;  // the first difference, or another failure
};
struct ConformanceReport {
  std::string device;  // the GPU on which the vectors were recorded
  std::vector<ConformanceRow> rows;
  // True if the emulator reproduces everything that was recorded, and something was recorded.
  bool passed() const {
    bool any = false;
    for (const ConformanceRow& row : rows) {
      if (row.wrong != 0) return false;
      any = any || row.recorded;
    }
    return any;
  }
};
// `golden`: the contents of tests/emulator/conformance.golden.
OCTAVO_API Result<ConformanceReport> emulator_conformance(const std::string& golden);

// Called with (done, total) from the calling thread.
using EmulatorProgress = std::function<void(std::int64_t, std::int64_t)>;

// A mutant is a kernel with one wait, fence, arrive, commit, barrier or mask term disabled.
struct Mutant {
  std::string call;       // "bar.sync at device/sm80/forward.cuh:213"
  std::string caught_by;  // a hazard, "wrong result", or empty if it survived
  std::string in_case;    // the case that caught it
  std::string why;        // why a survivor changes nothing; empty if not known
  bool accounted_for() const { return !caught_by.empty() || !why.empty(); }
};
struct MutantReport {
  std::string kernel, brief;
  std::vector<std::string> cases;
  std::vector<Mutant> mutants;
  std::string failure;  // the kernel itself did not pass its cases
  bool passed() const {
    for (const Mutant& mutant : mutants)
      if (!mutant.accounted_for()) return false;
    return failure.empty() && !mutants.empty();
  }
};
// `kernel`: "all", a family, an index into emulated_kernels(), or a config as printed there.
OCTAVO_API Result<std::vector<MutantReport>> emulator_mutants(
    const std::string& kernel, const EmulatorProgress& progress = {});

// Memory and instruction counts of a kernel.
struct MeasuredLine {
  std::string place;  // "ldmatrix.x4 at device/sm80/products.cuh:54"
  bool shared = true;
  std::int64_t requests = 0;  // warp-level requests
  std::int64_t needed = 0;    // wavefronts without a conflict; sectors if contiguous
  std::int64_t taken = 0;     // wavefronts; sectors touched
};
struct MeasuredCount {
  std::string instruction;
  std::int64_t times = 0;  // per warp for tensor instructions, per thread for others
};
struct MeasureReport {
  std::string kernel, brief;
  std::string case_name;
  std::vector<MeasuredLine> lines;
  std::vector<MeasuredCount> counts;
  std::int64_t bank_conflicts = 0;
  std::string failure;  // hazards, if any were found
};
OCTAVO_API Result<std::vector<MeasureReport>> emulator_measure(
    const std::string& kernel, const EmulatorProgress& progress = {});

}  // namespace octavo
