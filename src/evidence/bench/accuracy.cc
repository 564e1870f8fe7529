// SPDX-License-Identifier: Apache-2.0
// Runs each precision mode on each distribution, compares the result with fp64 attention on the
// original and on the quantized inputs, and times the mode on a GPU.
#include "octavo/accuracy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/error.h"
#include "evidence/bench/machine.h"
#include "evidence/bench/stats.h"
#include "evidence/cases/accuracy_data.h"
#include "evidence/cases/quantized_call.h"
#include "evidence/gates/gpu_suite.h"
#include "evidence/oracle/oracle.h"
#include "gpu/driver/timing.h"
#include "numeric/fork_safe.h"
#include "numeric/formats.h"
#include "runtime/staging.h"

namespace octavo {
namespace {

using evidence::Case;
using evidence::Distribution;
using evidence::Inputs;
using evidence::Truth;

constexpr std::int64_t kKeysOfOneSeed = 4096;  // with more keys, one seed is enough

std::int64_t default_most_keys(Device device) {
  constexpr std::int64_t kGpu = 131072, kCpu = 8192, kEmulator = 1024;
  return device.kind == Device::Kind::cuda  ? kGpu
         : device.kind == Device::Kind::cpu ? kCpu
                                            : kEmulator;
}

// A call on a device that can be repeated.
class DeviceCall {
 public:
  static Result<std::unique_ptr<DeviceCall>> make(const Arguments& host, const Options& options,
                                                  Device device) {
    auto made = std::make_unique<DeviceCall>();
    made->device_ = device;
    made->arguments_ = host;
    const Result<Problem> problem = problem_of(host, options);
    if (!problem.ok()) return problem.status();
    Result<Plan> planned = plan(*problem, device);
    if (!planned.ok()) return planned.status();
    made->plan_ = *planned;
    Result<Buffer> workspace = Buffer::make(device, planned->workspace_bytes());
    if (!workspace.ok()) return workspace.status();
    made->workspace_ = *workspace;
    if (device.kind == Device::Kind::cpu) return made;
    Result<StagedArguments> staged = StagedArguments::make(host, *problem, device);
    if (!staged.ok()) return staged.status();
    made->staged_ = std::move(staged).value();
    made->arguments_ = made->staged_->on_device();
    return made;
  }

  Explanation explain() const { return plan_->explain(); }
  Status run(Stream stream = nullptr) const {
    return plan_->run(arguments_, {workspace_.data(), workspace_.bytes()}, stream);
  }
  // Copies the result to the host's `out`.
  Status run_and_fetch() const {
    OCTAVO_RETURN_IF_ERROR(run());
    if (!staged_) return {};
    OCTAVO_RETURN_IF_ERROR(synchronize(device_));
    return staged_->fetch();
  }
  // The median time of a call, in microseconds.
  Result<double> time() const {
    // Hundreds of calls are timed, so each is timed less carefully than by bench.
    constexpr GpuTiming kTiming{.warmup_ms = 10, .samples = 7};
    Result<GpuTimes> times =
        gpu_times(device_, kTiming, [this](Stream stream) { return run(stream); });
    if (!times.ok()) return times.status();
    return evidence::quantile(std::move(times->samples_us), 0.5);
  }

 private:
  Device device_;
  Arguments arguments_;
  std::optional<Plan> plan_;
  std::optional<StagedArguments> staged_;
  Buffer workspace_;
};

struct Errors {
  ErrorStats stats;
  double bias = 0;
};

// The errors of the judged rows.
Errors errors_of(const Case& c, const Inputs& in, const Truth& truth,
                 const std::vector<double>& expected) {
  const Tensor& out = in.out.view;
  std::vector<float> found;
  found.reserve(expected.size());
  for (const evidence::JudgedRow& row : truth.rows) {
    const std::int64_t first =
        row.batch * out.stride[0] + row.head * out.stride[1] + row.row * out.stride[2];
    for (std::int64_t d = 0; d < c.head_dim; ++d)
      found.push_back(load_element(out.dtype, out.data, first + d));
  }
  const auto rows = static_cast<std::int64_t>(truth.rows.size());
  Errors errors;
  errors.stats =
      compare(ConstTensor::bhsd(found.data(), DType::f32, 1, 1, rows, c.head_dim), expected.data());
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    sum += found[i] - expected[i];
    squares += expected[i] * expected[i];
  }
  const auto count = static_cast<double>(std::max<std::size_t>(found.size(), 1));
  if (squares > 0) errors.bias = sum / count / std::sqrt(squares / count);
  return errors;
}

// Keeps the worse of two seeds, for each figure.
void widen(const Errors& errors, ErrorStats& stats, double& bias) {
  stats.max_abs = std::max(stats.max_abs, errors.stats.max_abs);
  stats.rmse = std::max(stats.rmse, errors.stats.rmse);
  stats.relative_rmse = std::max(stats.relative_rmse, errors.stats.relative_rmse);
  stats.cosine = std::min(stats.cosine, errors.stats.cosine);
  stats.not_finite += errors.stats.not_finite;
  if (std::abs(errors.bias) > std::abs(bias)) bias = errors.bias;
}

bool is_8bit_mode(Precision precision) { return precision > Precision::bf16; }
bool quantizes_v(Precision p) {
  return p == Precision::fp8 || p == Precision::fp8_fast || p == Precision::int8 ||
         p == Precision::sim8;
}

// bf16 starts from bf16 inputs; all other precisions start from f16.
Case case_for(const Distribution& of, Case c, Precision precision) {
  c.input = c.out = precision == Precision::bf16 ? DType::bf16 : DType::f16;
  c.options.precision = precision;
  c.options.quantization.hadamard = of.hadamard;
  return c;
}

// One size of one distribution: runs every precision on the same inputs.
class SizeRun {
 public:
  SizeRun(const AccuracyOptions& options, const evidence::Oracle& oracle, const Distribution& of)
      : options_(options), oracle_(oracle), of_(of) {}

  // Adds seed `c.seed` to the row; the first seed is timed.
  Status add(const Case& c, AccuracyRow& row) {
    OCTAVO_RETURN_IF_ERROR(prepare_inputs(c));
    in_->given.out = in_->out.view;
    Result<std::unique_ptr<DeviceCall>> call =
        DeviceCall::make(in_->given, c.options, options_.device);
    if (!call.ok()) {
      if (call.status().code() != ErrorCode::unsupported) return call.status();
      row.not_available = call.status().message();
      return {};
    }
    const bool first = row.kernel_name.empty();
    const Explanation told = (*call)->explain();
    row.kernel_name = told.kernel;
    row.config = told.config;
    row.reason = told.reason;
    evidence::poison_outputs(*in_);
    OCTAVO_RETURN_IF_ERROR((*call)->run_and_fetch());
    Result<Truth> truth = exact_truth(c, *in_, oracle_, original_ ? &*original_ : nullptr);
    if (!truth.ok()) return truth.status();
    original_ = std::move(truth).value();
    widen(errors_of(c, *in_, *original_, original_->original), row.total, row.total_bias);
    widen(errors_of(c, *in_, *original_, original_->quantized), row.kernel, row.kernel_bias);
    if (!first || options_.device.kind != Device::Kind::cuda) return {};
    const Result<double> us = (*call)->time();
    if (!us.ok()) return us.status();
    row.us = *us;
    return time_prequantized(c, row);
  }

 private:
  // All precisions that start from one input type share these inputs.
  Status prepare_inputs(const Case& c) {
    if (in_ && type_ == c.input && seed_ == c.seed) return {};
    original_.reset();
    Result<Inputs> made = evidence::make_inputs(of_, c);
    if (!made.ok()) return made.status();
    in_ = std::move(made).value();
    type_ = c.input;
    seed_ = c.seed;
    return {};
  }

  Status time_prequantized(const Case& c, AccuracyRow& row) {
    if (!quantizes_v(row.precision)) return {};
    const Result<evidence::QuantizedCall> prequantized =
        evidence::quantize_ahead(in_->given, c.options, VLayout::transposed);
    if (!prequantized.ok()) return prequantized.status();
    Options options = c.options;
    options.quantization = {};
    const auto call = DeviceCall::make(prequantized->arguments, options, options_.device);
    // Kernels that read V by rows have no time with prequantized operands.
    if (!call.ok())
      return call.status().code() == ErrorCode::unsupported ? Status() : call.status();
    const Result<double> us = (*call)->time();
    if (!us.ok()) return us.status();
    row.prequantized_us = *us;
    return {};
  }

  const AccuracyOptions& options_;
  const evidence::Oracle& oracle_;
  const Distribution& of_;
  std::optional<Inputs> in_;
  std::optional<Truth> original_;
  DType type_ = DType::f16;
  std::uint64_t seed_ = 0;
};

// The parameters of one row.
struct Job {
  const Distribution* of;
  Case size;
  std::vector<Precision> precisions;
  int seeds;
};

Result<std::vector<const Distribution*>> chosen_data(const std::vector<std::string>& names) {
  std::vector<const Distribution*> chosen;
  std::string known;
  for (const Distribution& d : evidence::distributions()) {
    known += (known.empty() ? "" : ", ") + d.name;
    if (names.empty() || std::find(names.begin(), names.end(), d.name) != names.end())
      chosen.push_back(&d);
  }
  for (const std::string& name : names)
    if (std::none_of(chosen.begin(), chosen.end(),
                     [&](const Distribution* d) { return d->name == name; }))
      return invalid("data", fmt::format("'{}'", name), known);
  return chosen;
}

Result<std::vector<Job>> jobs_of(const AccuracyOptions& options, std::int64_t most_keys) {
  const Result<std::vector<const Distribution*>> data = chosen_data(options.data);
  if (!data.ok()) return data.status();
  std::vector<Precision> precisions = options.precisions;
  if (precisions.empty())
    for (const Precision p : kAllPrecisions)
      if (p != Precision::native) precisions.push_back(p);
  std::vector<Job> jobs;
  for (const Distribution* of : *data)
    for (const Case& size : of->sizes) {
      if (size.seqlen_kv > most_keys) continue;
      Job job{of, size, {}, size.seqlen_kv > kKeysOfOneSeed ? 1 : options.seeds};
      for (const Precision p : precisions)
        if (!of->hadamard || is_8bit_mode(p)) job.precisions.push_back(p);
      jobs.push_back(job);
    }
  return jobs;
}

Status validate(const AccuracyOptions& options) {
  constexpr int kMostSeeds = 1000;
  if (options.seeds < 1 || options.seeds > kMostSeeds)
    return invalid("seeds", fmt::format("{}", options.seeds), "1 to 1000");
  if (options.most_keys && *options.most_keys < 512)
    return invalid("keys", fmt::format("{}", *options.most_keys), "512 or more");
  for (const Precision p : options.precisions)
    if (p == Precision::native)
      return invalid("precision", "native", "the modes that have an error of their own: fp16, ...");
  return {};
}

AccuracyRow row_of(const Job& job, Precision precision) {
  AccuracyRow row;
  row.data = job.of->name;
  row.precision = precision;
  row.hadamard = job.of->hadamard;
  row.heads = job.size.heads_q;
  row.seqlen_q = job.size.seqlen_q;
  row.seqlen_kv = job.size.seqlen_kv;
  row.head_dim = job.size.head_dim;
  return row;
}

Status run_job(const AccuracyOptions& options, const evidence::Oracle& oracle, const Job& job,
               std::vector<AccuracyRow>& rows) {
  std::vector<AccuracyRow> made;
  for (const Precision p : job.precisions) made.push_back(row_of(job, p));
  SizeRun run(options, oracle, *job.of);
  // One input type after the other, so that precision modes with the same inputs share the results
  // of the oracle.
  for (const DType type : {DType::f16, DType::bf16})
    for (int seed = 0; seed < job.seeds; ++seed)
      for (AccuracyRow& row : made) {
        Case c = case_for(*job.of, job.size, row.precision);
        if (c.input != type || !row.not_available.empty()) continue;
        c.seed = static_cast<std::uint64_t>(seed);
        OCTAVO_RETURN_IF_ERROR(run.add(c, row));
      }
  rows.insert(rows.end(), made.begin(), made.end());
  return {};
}

// Compiles the kernels on all cores before the first is needed.
void compile_ahead(Device device, const std::vector<Job>& jobs) {
  std::vector<Case> cases;
  for (const Job& job : jobs)
    for (const Precision p : job.precisions) cases.push_back(case_for(*job.of, job.size, p));
  if (device.kind == Device::Kind::cuda) evidence::compile_kernels(device, cases, {});
}

}  // namespace

const std::vector<AccuracyData>& accuracy_data() {
  static constinit MadeOnce<std::vector<AccuracyData>> made;
  return made.get([] {
    std::vector<AccuracyData> all;
    for (const Distribution& d : evidence::distributions()) all.push_back({d.name, d.description});
    return all;
  });
}

Result<AccuracyReport> accuracy(const AccuracyOptions& options) {
  return without_exceptions([&]() -> Result<AccuracyReport> {
    OCTAVO_RETURN_IF_ERROR(validate(options));
    AccuracyReport report;
    report.device = name(options.device);
    report.machine = evidence::machine_of(options.device);
    report.seeds = options.seeds;
    report.most_keys = options.most_keys.value_or(default_most_keys(options.device));
    const Result<std::vector<Job>> jobs = jobs_of(options, report.most_keys);
    if (!jobs.ok()) return jobs.status();
    const evidence::CheckOracle oracle = evidence::oracle_for(options.device);
    report.oracle = oracle.name;
    compile_ahead(options.device, *jobs);
    for (std::size_t i = 0; i < jobs->size(); ++i) {
      OCTAVO_RETURN_IF_ERROR(run_job(options, oracle.oracle, (*jobs)[i], report.rows));
      if (options.progress)
        options.progress(static_cast<std::int64_t>(i) + 1, static_cast<std::int64_t>(jobs->size()));
    }
    return report;
  });
}

}  // namespace octavo
