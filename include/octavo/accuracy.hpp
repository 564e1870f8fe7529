// How far off each precision is, on data that is easy and on data that is not, and what it costs:
// the frontier behind `octavo accuracy`, docs/precision.md and precision = automatic.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octavo/evidence.hpp"

namespace octavo {

// A distribution of Q, K and V, and the sizes at which it is looked at.
struct AccuracyData {
  std::string name;
  std::string description;
};
OCTAVO_API const std::vector<AccuracyData>& accuracy_data();

struct AccuracyOptions {
  Device device{};
  std::vector<std::string> data;      // names of accuracy_data(); empty: all
  std::vector<Precision> precisions;  // empty: all but native
  int seeds = 3;                      // 0 and on; beyond 4096 keys 0 alone
  std::optional<std::int64_t>
      most_keys{};  // unset: 131072 on a GPU, 8192 on the CPU, 1024 emulated
  Progress progress{};
};

// One precision on one distribution at one size: the worst of the seeds.
struct AccuracyRow {
  std::string data;
  Precision precision = Precision::fp16;
  bool hadamard = false;
  std::int64_t heads = 1, len_q = 1, len_kv = 1, head_dim = 64;  // of one batch entry
  std::string not_available;  // why there is nothing below; empty: there is

  ErrorStats total;       // against fp64 on the inputs
  ErrorStats kernel;      // against fp64 on what the precision makes of them
  double total_bias = 0;  // the mean error, over the rms of the reference
  double kernel_bias = 0;
  std::optional<double> us{};               // a call, its quantization included, by graph replay
  std::optional<double> packed_us{};        // the same of operands quantized before, V transposed
  std::string kernel_name, config, reason;  // as explain() has them
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

// Time against relative error, a panel for each distribution, as a whole SVG document. Fails where
// no row has a time.
OCTAVO_API Result<std::string> to_svg(const AccuracyReport& report);

}  // namespace octavo
