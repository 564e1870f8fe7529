// The gates a kernel passes before it counts: it compiles as it was meant to, it is right, it is
// not slower than what is on record, and the hardware's counters say why. In that order: what one
// gate has rejected the next does not look at.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/evidence.hpp"

namespace octavo {

// One limit of one gate, as the file of thresholds has it.
struct Threshold {
  std::string gate;  // compile, correctness, performance, counters
  std::string name;  // what is measured
  std::optional<double> at_least{};
  std::optional<double> at_most{};
  bool enforced = true;  // else it is reported, and rejects nothing
  std::string kernels;   // only kernels whose name begins so; empty: all
  double min_gflop = 0;  // only problems of at least so much work
  std::string verdict;   // what measuring said of the limit itself
  std::string reason;
};
// The thresholds of a JSON text (docs/json.md); of the library's own, bench/gates.json, if empty.
OCTAVO_API Result<std::vector<Threshold>> gate_thresholds(std::string_view json = {});

enum class GateState : std::uint8_t { passed, failed, blocked, not_measured };
OCTAVO_API std::string_view name(GateState state);

// One value held against one threshold.
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
  double ratio = 0;                      // of the medians, this run over the baseline
  double ratio_low = 0, ratio_high = 0;  // 95% bootstrap interval
  double resolution = 0;                 // how far two runs of the same kernel were apart
  std::string verdict{};                 // "slower", "not slower", "not measured"
  std::vector<double> samples_us{}, again_us{};
};

struct GateResult {
  std::string name{};
  GateState state = GateState::not_measured;
  std::string reason{};  // why it is blocked or not measured; else what was looked at
  std::vector<std::string> failures{};  // one sentence each
  std::vector<std::string> left_out{};  // parts of it that were not measured, each with its reason
  std::vector<GateFinding> findings{};  // of compile: the extremes; of counters: all
  std::vector<GateTiming> timings{};    // of performance
  std::optional<CheckReport> check{};   // of correctness
};

struct GateOptions {
  Device device{};
  std::string kernel_family;  // compile gate: kernels whose name begins so; empty: all
  std::string thresholds;     // JSON texts; of thresholds the library's own if empty
  std::string baseline;       // a report of `bench`
  std::string counters;       // a report of kind `counters`
  std::uint64_t seed = 42;
  int seeds = 3;           // of random problems
  std::int64_t cases = 0;  // of each part of the correctness gate, about; 0: all
  int kernels = 8;         // compiled here where the library has none built in; 0: all
  int iters = 400;
  Progress progress{};
};

struct GateReport {
  std::string device;
  std::string machine;  // what the device says of itself
  std::uint64_t seed = 0;
  std::vector<Threshold> thresholds;
  std::array<GateResult, 4> gates{};  // compile, correctness, performance, counters
  OCTAVO_API bool passed() const;     // nothing failed, and something was measured
};
OCTAVO_API Result<GateReport> gate(const GateOptions& options);
OCTAVO_API std::string to_json(const GateReport& report);

}  // namespace octavo
