// SPDX-License-Identifier: Apache-2.0
// Hardware counters of a kernel, read with CUPTI: tensor cores, memory, warps, bank conflicts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octavo/evidence.hpp"

namespace octavo {

struct CountersOptions {
  Device device{};
  std::vector<BenchCase> cases;  // empty: the five presets
  DType dtype = DType::f16;
  Options attention{};
  std::uint64_t seed = 42;
  std::string config;  // a kernel configuration to force; empty: the chosen one
  Progress progress{};
};

// A value by its name in docs/json.md.
struct CounterName {
  std::string key;
  std::string unit;
  std::string metric;  // the chip's metric; empty if it has none or the value is derived
};

struct CounterRow {
  BenchCase shape;
  Explanation kernel;
  int launch = 0;     // the index of this kernel in the call
  int launches = 0;   // kernels that a call launches
  bool main = false;  // true for the attention kernel, false for the quantizers before it
  double gflop = 0;   // of the case, as bench counts them
  std::vector<std::optional<double>> values;  // in the order of CountersReport::names
};

struct CountersReport {
  std::string device;
  std::string machine;
  std::string chip;   // CUPTI's name for it
  std::string cupti;  // its version
  std::string dtype;
  Options attention{};
  std::uint64_t seed = 0;
  int passes = 0;
  std::vector<CounterName> names;
  std::vector<CounterRow> rows;
  std::vector<std::string> not_counted;  // values that are missing, and why
  std::string not_measured;              // why nothing was measured; empty if something was
  bool measured() const { return not_measured.empty() && !rows.empty(); }
};
// Bad options are an error. A machine without counters gives a report with not_measured.
OCTAVO_API Result<CountersReport> counters(const CountersOptions& options);
OCTAVO_API std::string to_json(const CountersReport& report);

}  // namespace octavo
