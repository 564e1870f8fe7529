// SPDX-License-Identifier: Apache-2.0
// Measures the error and the time of each precision mode on easy and on hard data. `octavo
// accuracy`, docs/precision.md and precision = automatic use the results.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octavo/evidence.hpp"

namespace octavo {

// A distribution of Q, K and V, and the sizes at which it is measured.
struct AccuracyData {
  std::string name;
  std::string description;
};
OCTAVO_API const std::vector<AccuracyData>& accuracy_data();

struct AccuracyOptions {
  Device device{};
  std::vector<std::string> data;      // names of accuracy_data(); empty: all
  std::vector<Precision> precisions;  // empty: all but native
  int seeds = 3;                      // seeds 0, 1, ...; beyond 4096 keys only seed 0
  std::optional<std::int64_t>
      most_keys{};  // unset: 131072 on a GPU, 8192 on the CPU, 1024 emulated
  Progress progress{};
};

// The results of one precision mode on one distribution at one size, the worst over the seeds.
struct AccuracyRow {
  std::string data;
  Precision precision = Precision::fp16;
  bool hadamard = false;
  std::int64_t heads = 1, seqlen_q = 1, seqlen_kv = 1, head_dim = 64;  // of one batch entry
  std::string not_available;  // why the fields below are empty; empty if they are not

  ErrorStats total;       // against fp64 on the inputs
  ErrorStats kernel;      // against fp64 on the quantized inputs
  double total_bias = 0;  // mean error over the rms of the reference
  double kernel_bias = 0;
  std::optional<double> us{};               // one call with its quantization, by graph replay
  std::optional<double> prequantized_us{};  // the same with prequantized operands, V transposed
  std::string kernel_name, config, reason;  // as in explain()
};

struct AccuracyReport {
  std::string device;
  std::string machine;
  std::string oracle;  // where fp64 attention was computed
  int seeds = 0;
  std::int64_t most_keys = 0;
  std::vector<AccuracyRow> rows;
};
OCTAVO_API Result<AccuracyReport> accuracy(const AccuracyOptions& options);

OCTAVO_API std::string to_json(const AccuracyReport& report);

// Plots time against relative error, with one panel per distribution, as an SVG document. Fails if
// no row has a time.
OCTAVO_API Result<std::string> to_svg(const AccuracyReport& report);

}  // namespace octavo
