// The emulator: the GPU kernels' own source on the CPU, watched for hazards. The devices "emulator"
// and "emulator:90" run problems in it; what is here looks at the kernels themselves.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo {

// False where the library was built without it (it needs Boost.Context).
OCTAVO_API bool has_emulator();

// The order of everything that the instruction set leaves open, for runs from now on: without a
// seed warps run in turn and copies complete as late as a wait allows; with one, both follow the
// seed, and the same seed gives the same order.
OCTAVO_API void set_emulator_schedule(std::optional<std::uint64_t> seed);

// The kernels that the emulator can run.
struct EmulatedKernel {
  std::string kernel;  // "sm80_forward"
  std::string config;  // as `octavo kernels` spells it
  std::string brief;   // of it, what differs from the defaults
};
OCTAVO_API std::vector<EmulatedKernel> emulated_kernels();

// For each kind of hazard, kernels with one thing missing and their twins with it in place.
struct SelftestResult {
  std::string hazard;   // "copy in flight"
  std::string what;     // is wrong with the faulty kernel
  bool caught = false;  // the faulty kernel, at that hazard, without a schedule
  bool clean = false;   // nothing was found in its twin, under any of the schedules
  std::string report;   // what was said of the faulty kernel; of the twin, where that is not clean
  bool passed() const { return caught && clean; }
};
// `schedules`: how many seeds each twin is run under, beside none.
OCTAVO_API std::vector<SelftestResult> emulator_selftest(int schedules = 3);

// What each instruction gave on a GPU, and whether the emulator gives the same.
struct ConformanceRow {
  std::string instruction;
  std::int64_t words = 0;  // compared
  std::int64_t wrong = 0;
  bool recorded = false;   // false: the file has nothing about this instruction
  std::string difference;  // the first, or what went wrong
};
struct ConformanceReport {
  std::string device;  // that the vectors were recorded on
  std::vector<ConformanceRow> rows;
  // All that was recorded is reproduced, and nothing else went wrong.
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

// A kernel with each wait, fence, arrive, commit, barrier and mask term switched off, one by one.
struct Mutant {
  std::string call;       // "bar.sync at device/sm80/forward.cuh:213"
  std::string caught_by;  // a hazard, "wrong result", or empty: it survived
  std::string in_case;    // that it was caught in
  std::string why;        // a survivor changes nothing; empty: not known
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
// `kernel`: "all", a family, a number of emulated_kernels(), or a config as it is spelled there.
OCTAVO_API Result<std::vector<MutantReport>> emulator_mutants(
    const std::string& kernel, const EmulatorProgress& progress = {});

// What a kernel asks of the memory system and the units, counted.
struct MeasuredLine {
  std::string place;  // "ldmatrix.x4 at device/sm80/products.cuh:54"
  bool shared = true;
  std::int64_t requests = 0;  // by warps
  std::int64_t needed = 0;    // wavefronts without a conflict; sectors if packed densely
  std::int64_t taken = 0;     // wavefronts; sectors touched
};
struct MeasuredCount {
  std::string instruction;
  std::int64_t times = 0;  // by warps for tensor instructions, by threads for others
};
struct MeasureReport {
  std::string kernel, brief;
  std::string case_name;
  std::vector<MeasuredLine> lines;
  std::vector<MeasuredCount> counts;
  std::int64_t bank_conflicts = 0;
  std::string failure;  // hazards, where there were any
};
OCTAVO_API Result<std::vector<MeasureReport>> emulator_measure(
    const std::string& kernel, const EmulatorProgress& progress = {});

}  // namespace octavo
