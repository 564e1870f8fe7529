// SPDX-License-Identifier: Apache-2.0
// Runs cases and reads the hardware counters of their kernels with CUPTI.
#include "octavo/counters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "evidence/bench/machine.h"
#include "evidence/cases/planned_case.h"
#include "evidence/counters/counter_plan.h"
#include "evidence/counters/cupti.h"
#include "evidence/counters/occupancy.h"
#include "gpu/driver/context.h"
#include "octavo/kernels.hpp"

namespace octavo {
namespace {

using evidence::CounterBatch;
using evidence::CounterValues;
using evidence::MetricSet;
using evidence::PlannedCase;
using evidence::ResolvedCounter;

std::string version_of(const evidence::Cupti& cupti) {
  std::uint32_t number = 0;
  return cupti.get_version(&number) == cupti::kSuccess ? fmt::format("{}", number) : "unknown";
}

// State shared by all cases.
struct Session {
  const Gpu& gpu;
  const evidence::Cupti& cupti;
  evidence::Chip chip;
  std::vector<ResolvedCounter> resolved;
  std::vector<std::shared_ptr<const MetricSet>> batches;
};

// Finds the metrics that the chip has, and their batches.
Status plan_batches(Session& session) {
  const auto set_of = [&](const std::vector<std::string>& metrics) {
    return MetricSet::make(session.cupti, session.chip, metrics);
  };
  session.resolved =
      evidence::resolve_counters([&](const std::string& metric) { return set_of({metric}).ok(); });
  const Result<std::vector<CounterBatch>> batches = evidence::plan_counters(
      session.resolved, [&](const std::vector<std::string>& metrics) -> Result<std::size_t> {
        const auto set = set_of(metrics);
        if (!set.ok()) return set.status();
        return (*set)->passes();
      });
  if (!batches.ok()) return batches.status();
  for (const CounterBatch& batch : *batches) {
    auto set = set_of(batch.metrics);
    if (!set.ok()) return set.status();
    session.batches.push_back(std::move(set).value());
  }
  return {};
}

Result<Session> open_session(const Gpu& gpu) {
  const Result<const evidence::Cupti*> cupti = evidence::open_cupti();
  if (!cupti.ok()) return cupti.status();
  Result<evidence::Chip> chip = evidence::chip_of(**cupti, gpu.info.index, gpu.context);
  if (!chip.ok()) return chip.status();
  Session session{gpu, **cupti, std::move(chip).value(), {}, {}};
  OCTAVO_RETURN_IF_ERROR(plan_batches(session));
  return session;
}

// Runs the case until clocks and caches are warm.
Status warm_up(const PlannedCase& planned, Device device) {
  constexpr std::chrono::milliseconds kLong{20};
  const auto start = std::chrono::steady_clock::now();
  do {
    OCTAVO_RETURN_IF_ERROR(planned.run());
    OCTAVO_RETURN_IF_ERROR(synchronize(device));
  } while (std::chrono::steady_clock::now() - start < kLong);
  return {};
}

void say_once(std::vector<std::string>& said, std::string sentence) {
  if (std::find(said.begin(), said.end(), sentence) == said.end())
    said.push_back(std::move(sentence));
}

// The values of every kernel of a call, under the chip's metric names. A batch that cannot be
// counted is reported and skipped; if none can be, the list is empty.
Result<std::vector<CounterValues>> count_call(const Session& session, const PlannedCase& planned,
                                              Device device,
                                              std::vector<std::string>& not_counted) {
  std::vector<CounterValues> kernels;
  for (const auto& batch : session.batches) {
    OCTAVO_RETURN_IF_ERROR(warm_up(planned, device));
    const Result<std::vector<std::vector<double>>> counted =
        evidence::count_kernels(session.cupti, session.gpu.context, *batch, [&] {
          OCTAVO_RETURN_IF_ERROR(planned.run());
          return synchronize(device);
        });
    if (!counted.ok()) {
      say_once(not_counted,
               fmt::format("{}: {}", fmt::join(batch->names(), ", "), counted.status().what()));
      continue;
    }
    if (kernels.empty()) kernels.resize(counted->size());
    if (kernels.size() != counted->size())
      return Status(ErrorCode::device_error,
                    fmt::format("one call launched {} kernels, the next {}.", kernels.size(),
                                counted->size()));
    for (std::size_t k = 0; k < kernels.size(); ++k)
      for (std::size_t i = 0; i < batch->names().size(); ++i) {
        const double value = (*counted)[k][i];
        if (std::isfinite(value))
          kernels[k][batch->names()[i]] = value;
        else
          say_once(not_counted, fmt::format("{}: CUPTI has no value.", batch->names()[i]));
      }
  }
  return kernels;
}

// The values under Octavo's names, with the derived ones.
CounterValues by_key(const Session& session, const CounterValues& by_metric) {
  CounterValues values;
  for (const ResolvedCounter& c : session.resolved)
    if (const auto found = by_metric.find(c.metric); found != by_metric.end())
      values[std::string(c.counter->key)] = found->second;
  evidence::derive_counters(values);
  return values;
}

std::size_t main_kernel(const std::vector<CounterValues>& kernels) {
  const auto work = [](const CounterValues& values) {
    const auto active = values.find("tensor_active_pct"), time = values.find("time_ns");
    return active == values.end() || time == values.end() ? 0.0 : active->second * time->second;
  };
  const auto most = std::max_element(
      kernels.begin(), kernels.end(),
      [&](const CounterValues& a, const CounterValues& b) { return work(a) < work(b); });
  return static_cast<std::size_t>(most - kernels.begin());
}

Status count_case(const Session& session, const CountersOptions& options,
                  const evidence::PlannedCaseOptions& planned_options, const BenchCase& shape,
                  CountersReport& report) {
  PlannedCase planned(planned_options, shape);
  OCTAVO_RETURN_IF_ERROR(planned.prepare());
  Result<std::vector<CounterValues>> kernels =
      count_call(session, planned, options.device, report.not_counted);
  if (!kernels.ok()) return kernels.status();
  if (kernels->empty()) {
    report.not_measured =
        report.not_counted.empty() ? "CUPTI saw no kernel." : report.not_counted.back();
    return {};
  }
  for (CounterValues& values : *kernels) values = by_key(session, values);
  const std::size_t main = main_kernel(*kernels);
  // This value is not counted, but read from the code that the plan has just loaded.
  if (const Result<KernelInfo> info = compile_kernel(planned.explain().config); info.ok())
    if (const std::optional<double> percent = evidence::occupancy_pct(*info))
      (*kernels)[main]["occupancy_pct"] = *percent;
  for (std::size_t k = 0; k < kernels->size(); ++k) {
    CounterRow row{shape,
                   planned.explain(),
                   static_cast<int>(k),
                   static_cast<int>(kernels->size()),
                   k == main,
                   evidence::flop_of(shape, options.attention.causal) * 1e-9,
                   {}};
    for (const CounterName& name : report.names) {
      const auto found = (*kernels)[k].find(name.key);
      row.values.push_back(found == (*kernels)[k].end() ? std::nullopt
                                                        : std::optional(found->second));
    }
    report.rows.push_back(std::move(row));
  }
  return {};
}

void name_counters(const Session& session, CountersReport& report) {
  for (const ResolvedCounter& c : session.resolved) {
    report.names.push_back({std::string(c.counter->key), std::string(c.counter->unit), c.metric});
    if (c.metric.empty())
      report.not_counted.push_back(
          fmt::format("{}: {} has no such metric.", c.counter->key, session.chip.name));
  }
  for (const auto& [key, unit] : evidence::derived_counters())
    report.names.push_back({std::string(key), std::string(unit), ""});
}

// A failure to count is part of the report; any other failure is returned.
Status count_cases(const CountersOptions& options, const std::vector<BenchCase>& cases,
                   const evidence::PlannedCaseOptions& planned, CountersReport& report) {
  const Result<const Gpu*> gpu = open_gpu(options.device.index);
  if (!gpu.ok()) return gpu.status();
  const CurrentContext current(**gpu);
  OCTAVO_RETURN_IF_ERROR(current.status());
  const Result<Session> session = open_session(**gpu);
  if (!session.ok()) {
    report.not_measured = session.status().what();
    return {};
  }
  report.chip = session->chip.name;
  report.cupti = version_of(session->cupti);
  for (const auto& batch : session->batches) report.passes += static_cast<int>(batch->passes());
  name_counters(*session, report);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    OCTAVO_RETURN_IF_ERROR(count_case(*session, options, planned, cases[i], report));
    if (!report.not_measured.empty()) return {};
    if (options.progress)
      options.progress(static_cast<std::int64_t>(i) + 1, static_cast<std::int64_t>(cases.size()));
  }
  return {};
}

}  // namespace

Result<CountersReport> counters(const CountersOptions& options) {
  return without_exceptions([&]() -> Result<CountersReport> {
    const std::vector<BenchCase> cases = evidence::named_cases(options.cases);
    const evidence::PlannedCaseOptions planned{options.device, options.dtype, options.attention,
                                               options.seed, options.config};
    OCTAVO_RETURN_IF_ERROR(evidence::validate_cases(planned, cases));
    CountersReport report;
    report.device = name(options.device);
    report.machine = evidence::machine_of(options.device);
    report.dtype = name(options.dtype);
    report.attention = options.attention;
    report.seed = options.seed;
    if (options.device.kind != Device::Kind::cuda) {
      report.not_measured = fmt::format("{} has no counters; supported: GPUs.", report.device);
      return report;
    }
    OCTAVO_RETURN_IF_ERROR(count_cases(options, cases, planned, report));
    return report;
  });
}

}  // namespace octavo
