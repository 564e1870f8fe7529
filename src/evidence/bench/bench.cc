// SPDX-License-Identifier: Apache-2.0
// Times the library and, in the same run, the three-loop baseline and the machine's fp32 FMA peak.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <new>

#include "base/error.h"
#include "config/portable.h"
#include "cpu/attention.h"
#include "evidence/bench/host_cost.h"
#include "evidence/bench/machine.h"
#include "evidence/bench/stats.h"
#include "evidence/cases/inputs.h"
#include "evidence/cases/planned_case.h"
#include "evidence/gates/gpu_suite.h"
#include "evidence/oracle/judge.h"
#include "evidence/oracle/oracle.h"
#include "evidence/oracle/three_loop.h"
#include "gpu/driver/clock_watch.h"
#include "gpu/driver/timing.h"
#include "octavo/evidence.hpp"

namespace octavo {
namespace {

using evidence::Inputs;
using evidence::PlannedCase;
using evidence::PlannedCaseOptions;
using evidence::quantile;
using evidence::Verdict;

constexpr int kGroups = 10;  // the timed runs are in groups, with the three-loop code in between

double microseconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

PlannedCaseOptions planned(const BenchOptions& options) {
  return {options.device, options.dtype,   options.attention,    options.seed,
          options.config, options.buffers, options.prequantized, options.prequantized_v};
}

Status validate_options(const BenchOptions& options, const std::vector<BenchCase>& cases) {
  constexpr int kMost = 1'000'000;
  if (options.iters < 1 || options.iters > kMost)
    return invalid("iters", fmt::format("{}", options.iters), "1 to 1000000");
  if (options.warmup < 0 || options.warmup > kMost)
    return invalid("warmup", fmt::format("{}", options.warmup), "0 to 1000000");
  if (options.host && options.device.kind != Device::Kind::cuda)
    return invalid("host", fmt::format("on with {}", name(options.device)),
                   "on with a GPU, off elsewhere");
  if ((options.stream || options.cold_l2 || options.buffers != 1) &&
      options.device.kind != Device::Kind::cuda)
    return invalid(
        "the timing",
        fmt::format("launch {}, L2 {}, {} buffers on {}", options.stream ? "stream" : "graph",
                    options.cold_l2 ? "cold" : "warm", options.buffers, name(options.device)),
        "those of a GPU there, none elsewhere");
  constexpr int kMostBuffers = 1000;
  if (options.buffers < 1 || options.buffers > kMostBuffers)
    return invalid("buffers", fmt::format("{}", options.buffers), "1 to 1000");
  return evidence::validate_cases(planned(options), cases);
}

// Times one case.
class CaseBench {
 public:
  CaseBench(const BenchOptions& options, const BenchCase& shape, const evidence::Oracle& oracle)
      : options_(options), shape_(shape), oracle_(oracle), case_(planned(options), shape) {}

  Status prepare() { return case_.prepare(); }

  // Judges the result as `check` does, on eight rows per head.
  Result<Verdict> verify() {
    const Result<evidence::Truth> truth =
        evidence::make_truth(case_.of(), case_.inputs(), {oracle_, !case_.on_cpu()});
    if (!truth.ok()) return truth.status();
    evidence::poison_outputs(case_.inputs());
    OCTAVO_RETURN_IF_ERROR(case_.run());
    OCTAVO_RETURN_IF_ERROR(case_.fetch());
    return evidence::judge(case_.of(), case_.inputs(), *truth, options_.device.kind);
  }

  // Calls `done` with the number of finished timed runs.
  Status time(BenchRow& row, const std::function<void(int)>& done) {
    row.shape = shape_;
    row.kernel = case_.explain();
    if (options_.host) {
      const Result<HostCost> cost =
          evidence::host_cost(case_.impl(), case_.on_device(), case_.workspace());
      if (!cost.ok()) return cost.status();
      row.host = *cost;
    }
    return case_.on_cpu() ? time_on_cpu(row, done) : time_on_gpu(row, done);
  }

 private:
  // A sample is the mean of several calls; with a cold L2 it is one call.
  Status time_on_gpu(BenchRow& row, const std::function<void(int)>& done) {
    constexpr int kFewestSamples = 15;  // the median of fewer samples is unstable on a shared GPU
    GpuTiming timing;
    timing.stream = options_.stream;
    timing.cold = options_.cold_l2;
    timing.samples = std::max(div_up(options_.iters, timing.calls), kFewestSamples);
    ClockWatch watch(options_.device);
    int calls = 0;
    Result<GpuTimes> times = gpu_times(options_.device, timing, [&](Stream stream) {
      return case_.run(stream, calls++ % options_.buffers);
    });
    const ClockSummary clock = watch.finish();
    if (!times.ok()) return times.status();
    row.samples_us = std::move(times->samples_us);
    if (timing.cold) row.empty_us = times->empty_us;
    row.clock_mhz = clock.clock_mhz;
    row.power_w = clock.power_w;
    row.throttle = clock.throttle;
    done(options_.iters);
    summarise(row, {});
    return {};
  }

  Status time_on_cpu(BenchRow& row, const std::function<void(int)>& done) {
    std::vector<double> three_loop_us;
    int three_loop_runs = 0;
    // The three-loop code needs the sizes of Q for K and V.
    if (options_.three_loop && !shape_.heads_kv && !shape_.length_kv && !shape_.head_dim_v) {
      OCTAVO_RETURN_IF_ERROR(widen());
      three_loop_us.push_back(time_three_loop());
      // Five runs if a run is fast, one if a run takes seconds.
      constexpr double kAllowedUs = 2e6;
      three_loop_runs = static_cast<int>(std::clamp(kAllowedUs / three_loop_us[0], 1.0, 5.0)) - 1;
    }
    for (int i = 0; i < options_.warmup; ++i) OCTAVO_RETURN_IF_ERROR(case_.run());
    // Other load on the machine slows down the measurement of the peak as much as the kernel. So
    // the two alternate, for equal times, and both results are medians.
    const cpu::FmaMeter meter;
    std::vector<double> peak_gflops;
    Status status;
    for (int group = 0; group < kGroups; ++group) {
      const int end = options_.iters * (group + 1) / kGroups;
      for (int i = options_.iters * group / kGroups; i < end && status.ok(); ++i)
        row.samples_us.push_back(microseconds([&] { status = case_.run(); }));
      OCTAVO_RETURN_IF_ERROR(status);
      if (!row.samples_us.empty())
        peak_gflops.push_back(meter.gflops(row.samples_us.back() * 1e-6));
      if (group < three_loop_runs) three_loop_us.push_back(time_three_loop());
      done(end);
    }
    row.fma_peak_gflops = quantile(peak_gflops, 0.5);
    summarise(row, three_loop_us);
    return {};
  }

  // fp32 copies for the three-loop code, made once: conversion is not part of its time.
  Status widen() {
    const auto copy = [](const Inputs::Operand& operand, std::vector<float>& values) {
      const ConstTensor x = operand.wide.view;
      values.resize(static_cast<std::size_t>(x.shape[0] * x.shape[1] * x.shape[2] * x.shape[3]));
      return convert(x, Tensor::bhsd(values.data(), DType::f32, x.shape[0], x.shape[1], x.shape[2],
                                     x.shape[3]));
    };
    OCTAVO_RETURN_IF_ERROR(copy(case_.inputs().q, q_));
    OCTAVO_RETURN_IF_ERROR(copy(case_.inputs().k, k_));
    OCTAVO_RETURN_IF_ERROR(copy(case_.inputs().v, v_));
    out_.resize(q_.size());
    return {};
  }

  // The time of all sequences, of which the first is computed.
  double time_three_loop() {
    return static_cast<double>(shape_.batch) * microseconds([this] {
             evidence::three_loop(q_.data(), k_.data(), v_.data(), out_.data(), /*batch=*/1,
                                  shape_.heads, shape_.length, shape_.head_dim, options_.attention,
                                  cpu::thread_count());
           });
  }

  void summarise(BenchRow& row, const std::vector<double>& three_loop_us) const {
    row.median_us = quantile(row.samples_us, 0.5);
    row.low_us = quantile(row.samples_us, 0.25);
    row.high_us = quantile(row.samples_us, 0.75);
    row.gflops = evidence::flop_of(shape_, options_.attention.causal) / row.median_us * 1e-3;
    if (row.fma_peak_gflops) row.fma_peak_fraction = row.gflops / *row.fma_peak_gflops;
    if (three_loop_us.empty()) return;
    row.three_loop_us = quantile(three_loop_us, 0.5);
    row.three_loop_ratio = *row.three_loop_us / row.median_us;
  }

  const BenchOptions& options_;
  const BenchCase& shape_;
  const evidence::Oracle& oracle_;
  PlannedCase case_;
  std::vector<float> q_, k_, v_, out_;
};

Status bench_case(const BenchOptions& options, const BenchCase& shape,
                  const evidence::Oracle& oracle, BenchReport& report,
                  const std::function<void(int)>& done) {
  CaseBench bench(options, shape, oracle);
  OCTAVO_RETURN_IF_ERROR(bench.prepare());
  BenchRow row;
  if (options.check_correctness) {
    const Result<Verdict> verdict = bench.verify();
    if (!verdict.ok()) return verdict.status();
    row.max_error = verdict->total_max;
    for (const std::string& failure : verdict->failures)
      report.failures.push_back(fmt::format("{}: {}", shape.name, failure));
  }
  OCTAVO_RETURN_IF_ERROR(bench.time(row, done));
  if (row.fma_peak_gflops)
    report.fma_peak_gflops = std::max(report.fma_peak_gflops.value_or(0), *row.fma_peak_gflops);
  report.rows.push_back(std::move(row));
  return {};
}

}  // namespace

Result<BenchReport> bench(const BenchOptions& options) {
  return without_exceptions([&]() -> Result<BenchReport> {
    const std::vector<BenchCase> cases = evidence::named_cases(options.cases);
    OCTAVO_RETURN_IF_ERROR(validate_options(options, cases));
    BenchReport report;
    report.device = name(options.device);
    report.machine = evidence::machine_of(options.device);
    report.dtype = name(options.dtype);
    report.attention = options.attention;
    report.iters = options.iters;
    report.warmup = options.warmup;
    report.seed = options.seed;
    report.stream = options.stream;
    report.cold_l2 = options.cold_l2;
    report.buffers = options.buffers;
    report.prequantized = options.prequantized;
    report.prequantized_v = options.prequantized_v;
    report.threads = cpu::thread_count();
    const evidence::CheckOracle oracle =
        options.check_correctness ? evidence::oracle_for(options.device) : evidence::CheckOracle{};
    const auto total = static_cast<std::int64_t>(cases.size()) * options.iters;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const auto done = [&](int runs) {
        if (options.progress)
          options.progress(static_cast<std::int64_t>(i) * options.iters + runs, total);
      };
      try {
        OCTAVO_RETURN_IF_ERROR(bench_case(options, cases[i], oracle.oracle, report, done));
      } catch (const std::bad_alloc&) {
        return Status(ErrorCode::out_of_memory,
                      fmt::format("case {} does not fit into memory.", cases[i].name));
      }
    }
    return report;
  });
}

}  // namespace octavo
