// SPDX-License-Identifier: Apache-2.0
// Checks the ladder's kernels and times them in turn with the library's own.
#include "octavo/ladder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "attention/validate.h"
#include "base/error.h"
#include "evidence/bench/machine.h"
#include "evidence/bench/stats.h"
#include "evidence/cases/inputs.h"
#include "evidence/cases/planned_case.h"
#include "evidence/gates/check.h"
#include "evidence/gates/gpu_suite.h"
#include "evidence/ladder/ladder_cases.h"
#include "gpu/driver/context.h"
#include "gpu/driver/timing.h"
#include "gpu/jit/load_function.h"
#include "gpu/ladder/ladder.h"
#include "runtime/staging.h"

namespace octavo {
namespace {

using evidence::Case;
using evidence::Kernel;
using evidence::PlannedCase;
using evidence::quantile;

constexpr int kSamplesOfTurn = 3;

// With an emulator device, always the emulated H200: the L4 lacks the last rung's instructions.
Device device_of(const LadderOptions& options) {
  if (options.device.kind == Device::Kind::emulator) return {Device::Kind::emulator, 90};
  return options.device;
}

Options attention_of(const LadderOptions& options) {
  Options attention;
  if (options.causal) attention.causal = Causal::top_left;
  return attention;
}

std::vector<BenchCase> cases_of(const LadderOptions& options) {
  if (options.cases.empty() && options.device.kind == Device::Kind::emulator)
    return evidence::named_cases({{"", 1, 2, 150, 64}});
  return evidence::named_cases(options.cases);
}

evidence::PlannedCaseOptions planned(const LadderOptions& options) {
  evidence::PlannedCaseOptions planned;
  planned.device = device_of(options);
  planned.attention = attention_of(options);
  planned.seed = options.seed;
  return planned;
}

Status validate(const LadderOptions& options, const std::vector<BenchCase>& cases) {
  if (options.device.kind == Device::Kind::cpu)
    return unsupported("device", name(options.device), "cuda, emulator for the ladder");
  constexpr int kMostTurns = 1000;
  if (options.turns < 1 || options.turns > kMostTurns)
    return invalid("turns", fmt::format("{}", options.turns), "1 to 1000");
  OCTAVO_RETURN_IF_ERROR(evidence::validate_cases(planned(options), cases));
  for (const BenchCase& shape : cases)
    OCTAVO_RETURN_IF_ERROR(
        ladder_serves(evidence::problem_of(DType::f16, attention_of(options), shape)));
  return {};
}

Case case_of(const LadderOptions& options, const BenchCase& shape) {
  Case c;
  c.batch = shape.batch;
  c.heads_q = c.heads_kv = shape.heads;
  c.seqlen_q = shape.length;
  c.seqlen_kv = shape.length_kv.value_or(shape.length);
  c.head_dim = shape.head_dim;
  c.options = attention_of(options);
  c.lse = false;
  // All rows of a case that the emulator can run, eight rows of each head on a GPU.
  if (options.device.kind == Device::Kind::cuda) c.sampled_rows = 8;
  c.seed = options.seed;
  return c;
}

// All kernels of one case, in the memory of the last: the library's own.
class CaseLadder {
 public:
  CaseLadder(const LadderOptions& options, const BenchCase& shape,
             const evidence::CheckOracle& oracle)
      : options_(options), shape_(shape), oracle_(oracle), own_(planned(options), shape) {}

  // Checks every rung on this case and on the edges of its tiles, then times them.
  Status run(LadderReport& report, const std::function<void(int)>& done) {
    const bool times = options_.device.kind == Device::Kind::cuda;
    if (times) OCTAVO_RETURN_IF_ERROR(own_.prepare());
    for (int i = 0; i < kRungs; ++i) {
      const LadderConfig config{static_cast<Rung>(i), static_cast<int>(shape_.head_dim)};
      OCTAVO_RETURN_IF_ERROR(add_row(config, report));
      done(i + 1);
    }
    if (times) {
      LadderRow own;
      own.shape = shape_;
      own.kernel = own_.explain().kernel;
      rows_.push_back(own);
      launches_.push_back([this](Stream stream) { return own_.run(stream); });
      OCTAVO_RETURN_IF_ERROR(time());
    }
    for (LadderRow& row : rows_) report.rows.push_back(std::move(row));
    return {};
  }

 private:
  Status add_row(const LadderConfig& config, LadderReport& report) {
    const LadderShape shape = shape_of(config);
    LadderRow row;
    row.shape = shape_;
    row.rung = static_cast<int>(config.rung) + 1;
    row.kernel = name(config.rung);
    row.threads = shape.threads;
    row.smem_bytes = shape.smem_bytes;
    OCTAVO_RETURN_IF_ERROR(check(config, row, report));
    if (options_.device.kind == Device::Kind::cuda && row.not_run.empty())
      OCTAVO_RETURN_IF_ERROR(add_launch(config, row));
    else
      launches_.emplace_back();
    rows_.push_back(std::move(row));
    return {};
  }

  // As `octavo check`: two runs into poisoned outputs, which must agree in every bit.
  Status check(const LadderConfig& config, LadderRow& row, LadderReport& report) {
    CheckOptions options;
    options.device = device_of(options_);
    const evidence::Runner runner = evidence::runner_of(
        options.device, evidence::kernel_of_ladder(config), evidence::OnStream::standard);
    std::vector<std::vector<Case>> sets{{case_of(options_, shape_)}};
    if (options_.device.kind == Device::Kind::cuda) sets.push_back(evidence::cases_for(config));
    for (std::size_t i = 0; i < sets.size(); ++i) {
      const Result<CheckReport> checked = evidence::check_cases(options, sets[i], runner, oracle_);
      if (!checked.ok()) return checked.status();
      if (checked->not_run > 0) {
        row.not_run = checked->not_run_reasons.at(0);
        return {};
      }
      for (const std::string& failure : checked->failures)
        report.failures.push_back(fmt::format("{}: {}", row.kernel, failure));
      if (i > 0 || checked->rows.empty()) continue;
      row.max_error = checked->rows[0].worst_total_error;
      row.bound_ratio = checked->rows[0].worst_bound_ratio;
    }
    return {};
  }

  Status add_launch(const LadderConfig& config, LadderRow& row) {
    const Result<Problem> problem = problem_of(own_.on_device(), attention_of(options_));
    if (!problem.ok()) return problem.status();
    const Result<Kernel> kernel = evidence::kernel_of_ladder(config)(*problem, options_.device);
    if (!kernel.ok()) return kernel.status();
    launches_.push_back([run = kernel->run, arguments = own_.on_device()](Stream stream) {
      return run(arguments, {}, stream);
    });
    return add_registers(config, row);
  }

  Status add_registers(const LadderConfig& config, LadderRow& row) const {
    const Result<const Gpu*> gpu = open_gpu(options_.device.index);
    if (!gpu.ok()) return gpu.status();
    const Result<cuda::Function> function =
        load_function(**gpu, kernel_source(config, (*gpu)->info.arch), shape_of(config).smem_bytes);
    if (!function.ok()) return function.status();
    const CurrentContext current(**gpu);
    OCTAVO_RETURN_IF_ERROR(current.status());
    int registers = 0;
    OCTAVO_GPU_TRY(*(*gpu)->driver,
                   (*gpu)->driver->function_get_attribute(
                       &registers, cuda::FunctionAttribute::registers, *function),
                   "cuFuncGetAttribute");
    row.registers = registers;
    return {};
  }

  // All kernels in turn, so that clocks and temperature are the same for all.
  Status time() {
    std::vector<GpuTiming> timings(rows_.size());
    for (int turn = 0; turn < options_.turns; ++turn)
      for (std::size_t i = 0; i < rows_.size(); ++i) {
        if (!launches_[i]) continue;
        if (turn == 0) OCTAVO_RETURN_IF_ERROR(choose_timing(launches_[i], timings[i]));
        const Result<GpuTimes> times = gpu_times(options_.device, timings[i], launches_[i]);
        if (!times.ok()) return times.status();
        std::vector<double>& samples = rows_[i].samples_us;
        samples.insert(samples.end(), times->samples_us.begin(), times->samples_us.end());
      }
    summarise();
    return {};
  }

  // Fewer calls a sample if a call takes long.
  Status choose_timing(const std::function<Status(Stream)>& launch, GpuTiming& timing) const {
    constexpr double kSampleUs = 2000;
    timing.calls = 1;
    timing.samples = 1;
    timing.warmup_ms = 0;
    const Result<GpuTimes> once = gpu_times(options_.device, timing, launch);
    if (!once.ok()) return once.status();
    timing.calls = static_cast<int>(std::clamp(kSampleUs / once->samples_us[0], 1.0, 20.0));
    timing.samples = kSamplesOfTurn;
    timing.warmup_ms = 10;
    return {};
  }

  void summarise() {
    const double flop = evidence::flop_of(shape_, attention_of(options_).causal);
    for (LadderRow& row : rows_) {
      if (row.samples_us.empty()) continue;
      row.median_us = quantile(row.samples_us, 0.5);
      row.low_us = quantile(row.samples_us, 0.25);
      row.high_us = quantile(row.samples_us, 0.75);
      row.gflops = flop / *row.median_us * 1e-3;
    }
    const std::optional<double> own = rows_.back().median_us;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      LadderRow& row = rows_[i];
      if (!row.median_us || row.rung == 0) continue;
      if (own) row.vs_octavo = *own / *row.median_us;
      if (i > 0 && rows_[i - 1].median_us)
        row.vs_previous = *rows_[i - 1].median_us / *row.median_us;
    }
  }

  const LadderOptions& options_;
  const BenchCase& shape_;
  const evidence::CheckOracle& oracle_;
  PlannedCase own_;
  std::vector<LadderRow> rows_;
  std::vector<std::function<Status(Stream)>> launches_;  // empty: not timed
};

}  // namespace

Result<LadderReport> run_ladder(const LadderOptions& options) {
  return without_exceptions([&]() -> Result<LadderReport> {
    const std::vector<BenchCase> cases = cases_of(options);
    OCTAVO_RETURN_IF_ERROR(validate(options, cases));
    LadderReport report;
    const Device device = device_of(options);
    report.device = name(device);
    report.machine = evidence::machine_of(device);
    report.causal = options.causal;
    report.seed = options.seed;
    report.turns = device.kind == Device::Kind::cuda ? options.turns : 0;
    const evidence::CheckOracle oracle = evidence::oracle_for(device);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const auto done = [&](int kernels) {
        if (options.progress)
          options.progress(static_cast<std::int64_t>(i) * kRungs + kernels,
                           static_cast<std::int64_t>(cases.size()) * kRungs);
      };
      CaseLadder of_case(options, cases[i], oracle);
      OCTAVO_RETURN_IF_ERROR(of_case.run(report, done));
    }
    return report;
  });
}

}  // namespace octavo
