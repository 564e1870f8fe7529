// SPDX-License-Identifier: Apache-2.0
// The gates that a kernel must pass: it compiles as intended, it is correct, it is not slower than
// the recorded baseline, and its hardware counters are within limits. They run in that order, and a
// failed gate blocks the next.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/evidence.hpp"

namespace octavo {

// One limit of one gate, from the thresholds file.
struct Threshold {
  std::string gate;  // compile, correctness, performance, counters
  std::string name;  // what is measured
  std::optional<double> at_least{};
  std::optional<double> at_most{};
  bool enforced = true;  // if false, it is reported but rejects nothing
  std::string kernels;   // only kernels whose name starts with this; empty: all
  double min_gflop = 0;  // only problems with at least this much work
  std::string verdict;   // what measurements showed about the limit itself
  std::string reason;
};
// The thresholds of a JSON text (docs/json.md); if empty, the library's own from bench/gates.json.
OCTAVO_API Result<std::vector<Threshold>> gate_thresholds(std::string_view json = {});

enum class GateState : std::uint8_t { passed, failed, blocked, not_measured };
OCTAVO_API std::string_view name(GateState state);

// One value compared with one threshold.
struct GateFinding {
  std::string subject{};  // a kernel, a shape
  std::string threshold{};
  double value = 0;
  std::string limit{};  // "at most 0"
  bool held = true;
  bool enforced = true;
};

// A shape of the performance gate.
struct GateTiming {
  BenchCase shape;
  double median_us = 0;
  double baseline_us = 0;
  double ratio = 0;                      // median of this run over that of the baseline
  double ratio_low = 0, ratio_high = 0;  // 95% bootstrap interval
  double resolution = 0;                 // difference between two runs of the same kernel
  std::string verdict{};                 // "slower", "not slower", "not measured"
  std::vector<double> samples_us{}, again_us{};
};

struct GateResult {
  std::string name{};
  GateState state = GateState::not_measured;
  std::string reason{};  // why it is blocked or not measured; otherwise what was checked
  std::vector<std::string> failures{};  // one sentence each
  std::vector<std::string> left_out{};  // parts that were not measured, each with its reason
  std::vector<GateFinding> findings{};  // compile gate: the extremes; counters gate: all
  std::vector<GateTiming> timings{};    // performance gate
  std::optional<CheckReport> check{};   // correctness gate
};

struct GateOptions {
  Device device{};
  std::string kernel_family;  // compile gate: kernels whose name starts with this; empty: all
  std::string thresholds;     // JSON text; empty: the library's own
  std::string baseline;       // JSON text of a `bench` report
  // A baseline that cannot be compared, because it is of another machine or the noise is too large,
  // fails the gate; with `baseline_optional` the gate counts as not measured.
  bool baseline_optional = false;
  std::string counters;  // JSON text of a `counters` report
  std::uint64_t seed = 42;
  int seeds = 3;  // for random problems
  // The seed of problems of all sizes that every run draws anew, as a kernel may be right, by
  // accident or intent, for problems known in advance. Empty: a random seed, which the report
  // names.
  std::optional<std::uint64_t> draw_seed{};
  std::int64_t cases = 0;  // about this many for each part of the correctness gate; 0: all
  int kernels = 8;         // to compile now if the library has none built in; 0: all
  int iters = 400;
  Progress progress{};
};

struct GateReport {
  std::string device;
  std::string machine;  // the device's description
  std::uint64_t seed = 0;
  std::uint64_t draw_seed = 0;
  std::vector<Threshold> thresholds;
  std::array<GateResult, 4> gates{};  // compile, correctness, performance, counters
  OCTAVO_API bool passed() const;     // nothing failed, and something was measured
};
OCTAVO_API Result<GateReport> gate(const GateOptions& options);
OCTAVO_API std::string to_json(const GateReport& report);

}  // namespace octavo
