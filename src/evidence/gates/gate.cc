// SPDX-License-Identifier: Apache-2.0
// Runs the gates in their order, on the library itself.
#include "evidence/gates/gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "evidence/bench/machine.h"
#include "evidence/cases/planned_case.h"
#include "evidence/oracle/oracle.h"
#include "octavo/counters.hpp"

namespace octavo {

std::string_view name(GateState state) {
  switch (state) {
    case GateState::passed:
      return "passed";
    case GateState::failed:
      return "failed";
    case GateState::blocked:
      return "blocked";
    case GateState::not_measured:
      break;
  }
  return "not measured";
}

bool GateReport::passed() const {
  const auto count = [this](GateState state) {
    return std::count_if(gates.begin(), gates.end(),
                         [state](const GateResult& g) { return g.state == state; });
  };
  return count(GateState::failed) == 0 && count(GateState::blocked) == 0 &&
         count(GateState::passed) > 0;
}

Result<GateReport> gate(const GateOptions& options) {
  return without_exceptions([&]() -> Result<GateReport> {
    return evidence::run_gates(options, evidence::library_subject(options));
  });
}

}  // namespace octavo

namespace octavo::evidence {
namespace {

Status validate_options(const GateOptions& options) {
  if (options.seeds < 2 || options.seeds > 100)
    return invalid("seeds", fmt::format("{}", options.seeds), "2 to 100");
  if (!options.kernel_family.empty() && options.kernel_family != "sm80" &&
      options.kernel_family != "sm90")
    return invalid("kernel_family", fmt::format("\"{}\"", options.kernel_family), "sm80, sm90");
  if (options.cases < 0) return invalid("cases", fmt::format("{}", options.cases), "0 or more");
  if (options.kernels < 0)
    return invalid("kernels", fmt::format("{}", options.kernels), "0 or more");
  if (options.iters < 1 || options.iters > 1'000'000)
    return invalid("iters", fmt::format("{}", options.iters), "1 to 1000000");
  return {};
}

// The library's kernels, compiled now if none is embedded.
Result<std::vector<KernelInfo>> library_kernels_of(const GateOptions& options) {
  std::vector<KernelInfo> list;
  for (KernelInfo& info : shipped_kernel_list())
    if (info.kernel.starts_with(options.kernel_family)) list.push_back(std::move(info));
  if (has_shipped_kernels()) return list;
  std::erase_if(list, [](const KernelInfo& info) { return info.ptx; });
  const auto total = static_cast<std::int64_t>(list.size());
  std::vector<KernelInfo> compiled;
  for (const std::int64_t i : spread_rows(total, options.kernels == 0 ? total : options.kernels)) {
    Result<KernelInfo> info = compile_kernel(list[static_cast<std::size_t>(i)].config);
    if (!info.ok()) return info.status();
    compiled.push_back(std::move(info).value());
  }
  return compiled;
}

Result<std::vector<double>> library_time(const BenchOptions& options, const BenchCase& shape) {
  BenchOptions one = options;
  one.cases = {shape};
  Result<BenchReport> report = bench(one);
  if (!report.ok()) return report.status();
  return std::move(report->rows.front().samples_us);
}

// The presets, and one case that fills the chip for milliseconds.
Result<std::string> library_counters(const GateOptions& options) {
  CountersOptions count;
  count.device = options.device;
  count.seed = options.seed;
  count.cases = named_cases({});
  count.cases.push_back({"16k", 1, 16, 16384, 128});
  const Result<CountersReport> report = counters(count);
  if (!report.ok()) return report.status();
  return to_json(*report);
}

}  // namespace

GateSubject library_subject(const GateOptions& options) {
  return {[options] { return library_kernels_of(options); }, library_kernel, library_time,
          [options] { return library_counters(options); }};
}

Result<GateReport> run_gates(const GateOptions& given, const GateSubject& subject) {
  OCTAVO_RETURN_IF_ERROR(validate_options(given));
  GateOptions options = given;
  if (!options.draw_seed) options.draw_seed = std::random_device()();
  Result<std::vector<Threshold>> thresholds = gate_thresholds(options.thresholds);
  if (!thresholds.ok()) return thresholds.status();
  GateReport report;
  report.device = name(options.device);
  report.machine = machine_of(options.device);
  report.seed = options.seed;
  report.draw_seed = *options.draw_seed;
  report.thresholds = std::move(thresholds).value();

  using Gate = std::function<Result<GateResult>()>;
  const std::array<std::pair<const char*, Gate>, 4> gates = {{
      {"compile", [&] { return compile_gate(report.thresholds, subject); }},
      {"correctness", [&] { return correctness_gate(options, report.thresholds, subject); }},
      {"performance",
       [&] { return performance_gate(options, report.thresholds, subject, report.machine); }},
      {"counters", [&] { return counters_gate(options, report.thresholds, subject); }},
  }};
  std::string failed;
  for (std::size_t i = 0; i < gates.size(); ++i) {
    if (!failed.empty()) {
      report.gates[i] = {.name = gates[i].first,
                         .state = GateState::blocked,
                         .reason = fmt::format("the {} gate failed.", failed)};
      continue;
    }
    Result<GateResult> result = gates[i].second();
    if (!result.ok()) return result.status();
    report.gates[i] = std::move(result).value();
    if (report.gates[i].state == GateState::failed) failed = report.gates[i].name;
  }
  return report;
}

}  // namespace octavo::evidence
