// SPDX-License-Identifier: Apache-2.0
// The ladder: five teaching kernels, from one thread per row to specialised warps on Hopper
// (src/device/ladder/, docs/ladder/). Checks and times them beside the library's own kernel.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octavo/evidence.hpp"

namespace octavo {

struct LadderOptions {
  Device
      device{};  // a GPU; or the emulator, an H200 whichever is named, which checks without times
  // FP16, head_dim 64 or 128, as many heads of K and V as of Q. Empty: the five presets, in the
  // emulator (1, 2, 150, 64).
  std::vector<BenchCase> cases;
  bool causal = false;  // aligned top-left
  std::uint64_t seed = 42;
  int turns = 5;  // how often all kernels of a case are timed in turn
  Progress progress{};
};

// One kernel on one case.
struct LadderRow {
  BenchCase shape;
  int rung = 0;         // 1 to 5; 0: the library's own kernel
  std::string kernel;   // "scalar", ..., "specialised_warps", or as in explain()
  std::string not_run;  // why the fields below are empty; empty if they are not

  std::optional<double> max_error{};    // against fp64; none for the library's own kernel
  std::optional<double> bound_ratio{};  // largest error over its bound; passed if <= 1
  std::optional<double> median_us{}, low_us{}, high_us{};  // one call, by graph replay; quartiles
  std::optional<double> gflops{};       // 4 B H S S D, half of it when causal, over the median
  std::optional<double> vs_previous{};  // time of the rung before over this one's
  std::optional<double> vs_octavo{};    // time of the library's kernel over this one's
  std::optional<int> registers{};       // of a thread at launch
  int threads = 0, smem_bytes = 0;      // of a CTA; 0 for the library's own kernel
  std::vector<double> samples_us;
};

struct LadderReport {
  std::string device;
  std::string machine;
  bool causal = false;
  std::uint64_t seed = 0;
  int turns = 0;
  std::vector<LadderRow> rows;  // for each case the rungs in order, then the library's own kernel
  std::vector<std::string> failures;
  bool passed() const { return failures.empty() && !rows.empty(); }
};
OCTAVO_API Result<LadderReport> run_ladder(const LadderOptions& options);
OCTAVO_API std::string to_json(const LadderReport& report);

}  // namespace octavo
