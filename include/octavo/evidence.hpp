// SPDX-License-Identifier: Apache-2.0
// Evaluation: the fp64 oracle, reproducible random inputs, errors, and what `octavo check` and
// `octavo bench` run. Not for production use.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo {

// ---------------------------------------------------------------------------------------------
// Reference results

// Computes attention in fp64. 8-bit inputs are dequantized with their scales, and options.precision
// is ignored. `out` receives contiguous doubles in the shape of arguments.out; so does `lse`, which
// may be null. arguments.out and arguments.lse are not touched.
OCTAVO_API Status reference(const Arguments& arguments, const Options& options, double* out,
                            double* lse = nullptr);

// Fills an f32, f16 or bf16 tensor with standard normal values that depend only on the seed, the
// stream and the logical index (b, h, s, d) in row-major order: the same on every machine.
OCTAVO_API Status random_normal(const Tensor& tensor, std::uint64_t seed, std::uint64_t stream);

struct ErrorStats {
  double max_abs = 0;
  double rmse = 0;
  double relative_rmse = 0;  // rmse over the rms of the reference
  double cosine = 1;
  std::int64_t not_finite = 0;  // non-finite elements whose reference is finite
};
// Compares `out` with contiguous doubles in its shape.
OCTAVO_API ErrorStats compare(const ConstTensor& out, const double* reference);

// ---------------------------------------------------------------------------------------------
// Named sizes

struct Preset {
  std::string_view name;
  std::int64_t batch, heads, length, head_dim;
};
// mission, small, long, wide, stress
OCTAVO_API const std::vector<Preset>& presets();

// ---------------------------------------------------------------------------------------------
// Check

// Called with (done, total) from the calling thread.
using Progress = std::function<void(std::int64_t, std::int64_t)>;

struct CheckOptions {
  Device device{};
  std::string suite =
      "all";  // all, twelve, presets, decode, block_mask; on a GPU configs, emulated
  std::optional<Precision> precision{};  // only this one
  std::uint64_t seed = 42;
  int repeat = 2;          // runs of each case; all must agree in every bit
  std::int64_t cases = 0;  // only about this many, spread over the suite; 0: all
  // Runs on this many threads, on a GPU each with its own stream; every second thread calls
  // attention() instead of a plan. 0: one thread, on the default stream.
  int streams = 0;
  bool overlap_launch = false;  // every case with Options::overlap_launch
  Progress progress{};
  Progress compile_progress{};  // on a GPU, while kernels are compiled, before the first case
};

// The worst results of one precision and input format over its cases.
struct CheckRow {
  std::string precision;
  std::string format;  // of the inputs
  std::int64_t cases = 0;
  std::int64_t failed = 0;
  double worst_total_error = 0;   // max |out - fp64 on the original inputs|
  double worst_kernel_error = 0;  // max |out - fp64 on the quantized inputs|
  double worst_total_rmse = 0;
  double worst_bound_ratio = 0;  // the largest ratio of error to bound; passed if <= 1
  std::string bound;             // the rule, as text
  std::string worst_case;        // the case that came closest to (or broke) its bound
};

struct CheckReport {
  std::string device;
  std::string suite;
  std::uint64_t seed = 0;
  int repeat = 0;
  int streams = 0;
  bool overlap_launch = false;
  std::int64_t cases = 0;
  std::int64_t distinct = 0;
  std::int64_t kernels = 0;          // different kernels that the cases used; 0: not on a GPU
  std::string oracle;                // where fp64 attention was computed
  std::int64_t oracle_compared = 0;  // cases whose oracle was compared with the CPU's
  double oracle_difference = 0;      // the largest, relative to the bound for reordered sums
  std::int64_t emulated = 0;         // cases compared with the same kernel in the emulator
  double emulated_difference = 0;    // the largest
  std::vector<CheckRow> rows;
  std::vector<std::string> failures;         // one line each: case, expected and actual result
  std::int64_t not_run = 0;                  // cases the device does not support; not in `cases`
  std::vector<std::string> not_run_reasons;  // each once
  bool passed() const { return failures.empty() && cases > 0; }
};
OCTAVO_API Result<CheckReport> check(const CheckOptions& options);

// ---------------------------------------------------------------------------------------------
// Bench

struct BenchCase {
  std::string name;  // a preset's, or its shape
  std::int64_t batch = 1, heads = 1, length = 1, head_dim = 64;
  std::optional<std::int64_t> heads_kv{}, length_kv{};  // of K and V, if they differ from Q's
  std::optional<std::int64_t> head_dim_v{};             // of V, likewise
};

struct BenchOptions {
  Device device{};
  std::vector<BenchCase> cases;  // empty: the five presets
  DType dtype = DType::f16;
  Options attention{};
  int iters = 100;
  int warmup = 20;
  std::uint64_t seed = 42;
  bool check_correctness = true;
  bool three_loop = true;  // also time a plain three-loop implementation (CPU)
  std::string config;      // a kernel configuration to force; empty: the chosen one
  // On a GPU. The default is CUDA graph replays with inputs that L2 may still hold.
  bool stream = false;   // launched by the host one by one
  bool cold_l2 = false;  // L2 is overwritten before each call
  int buffers = 1;       // copies of inputs and outputs that calls use in rotation
  bool host = false;     // also time the host's part (GPU)
  // Operands are quantized before the timing, as the precision would in the call, so that attention
  // on 8-bit inputs is timed. V is transposed, or kept in rows and transposed in every call.
  bool prequantized = false;
  VLayout prequantized_v = VLayout::transposed;
  Progress progress{};
};

// The host time of an asynchronous GPU call in nanoseconds: medians of interleaved measurements.
struct HostCost {
  double run_ns = 0;                       // Plan::run
  double call_ns = 0;                      // attention() with a cached plan
  std::optional<double> bare_launch_ns{};  // the driver's part: the same launch, the same bytes
};

struct BenchRow {
  BenchCase shape;
  Explanation kernel;
  double median_us = 0;
  double low_us = 0;                        // first quartile
  double high_us = 0;                       // third quartile
  double gflops = 0;                        // 4 B H S S D, half of it when causal, over the median
  std::optional<double> fma_peak_gflops{};  // fp32, the larger of right before and after
  std::optional<double> fma_peak_fraction{};
  std::optional<double> three_loop_us{};
  std::optional<double> three_loop_ratio{};
  std::optional<double> max_error{};  // not measured with check_correctness off
  std::optional<HostCost> host{};
  std::optional<double> empty_us{};  // cold L2: time of a sample without a call; not subtracted
  // By NVML during the timing: medians, and throttle reasons.
  std::optional<double> clock_mhz{}, power_w{};
  std::optional<std::vector<std::string>> throttle{};
  std::vector<double> samples_us;
};

struct BenchReport {
  std::string device;
  std::string machine;  // the device's description
  std::string dtype;
  Options attention{};
  int iters = 0;
  int warmup = 0;
  std::uint64_t seed = 0;
  bool stream = false;
  bool cold_l2 = false;
  int buffers = 1;
  bool prequantized = false;
  VLayout prequantized_v = VLayout::transposed;
  int threads = 0;
  std::optional<double> fma_peak_gflops{};  // fp32, all threads, the largest over the rows
  std::vector<BenchRow> rows;
  std::vector<std::string> failures;
  bool passed() const { return failures.empty() && !rows.empty(); }
};
OCTAVO_API Result<BenchReport> bench(const BenchOptions& options);

// JSON with the schema of docs/json.md. kSchemaVersion grows when the meaning of a field changes.
inline constexpr int kSchemaVersion = 1;
OCTAVO_API std::string to_json(const CheckReport& report);
OCTAVO_API std::string to_json(const BenchReport& report);
OCTAVO_API std::string to_json(const Explanation& explanation);
OCTAVO_API std::string to_json(const RangeStats& stats);

}  // namespace octavo
