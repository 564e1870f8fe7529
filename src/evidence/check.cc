// Runs cases, judges them, and keeps the worst of each precision and input format.
#include "evidence/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "attention/error.h"
#include "evidence/bounds.h"
#include "evidence/inputs.h"
#include "evidence/judge.h"
#include "evidence/oracle.h"
#include "runtime/staging.h"

namespace octavo::evidence {
namespace {

struct Prepared {
  Status status;
  Inputs inputs;
  Truth truth;
};

Prepared prepare(const Case& c) {
  Prepared p;
  Result<Inputs> inputs = make_inputs(c);
  if (!inputs.ok()) return {inputs.status(), {}, {}};
  p.inputs = std::move(inputs).value();
  Result<Truth> truth = make_truth(c, p.inputs);
  if (!truth.ok()) return {truth.status(), {}, {}};
  p.truth = std::move(truth).value();
  return p;
}

// The oracle has one thread a case; the cases of a chunk share the cores.
std::vector<Prepared> prepare_all(const Case* cases, std::size_t count) {
  std::vector<Prepared> prepared(count);
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) prepared[i] = prepare(cases[i]);
  };
  std::vector<std::thread> helpers;
  const unsigned cores = std::max(std::thread::hardware_concurrency(), 1U);
  for (unsigned t = 1; t < cores; ++t) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  return prepared;
}

// Runs twice into fresh poison: the bits must repeat, and nothing may survive from the first run.
Verdict run_case(const Case& c, Prepared& p, const Runner& runner, Device::Kind kind) {
  Verdict verdict;
  std::vector<std::byte> first_out, first_lse;
  for (int run = 0; run < 2; ++run) {
    first_out = p.inputs.out.bytes;
    first_lse = p.inputs.lse.bytes;
    poison_outputs(p.inputs);
    const Status status = runner(p.inputs.given, c.options);
    // The CPU serves everything: what it refuses is a failure.
    if (status.code() == ErrorCode::unsupported && kind != Device::Kind::cpu) {
      verdict.not_run = status.message();
      return verdict;
    }
    if (!status.ok()) {
      verdict.failures.push_back(fmt::format("run failed: {}", status.message()));
      return verdict;
    }
  }
  verdict = judge(c, p.inputs, p.truth, kind);
  if (first_out != p.inputs.out.bytes || first_lse != p.inputs.lse.bytes)
    verdict.failures.push_back("two runs on the same inputs differ in their bits");
  return verdict;
}

CheckRow& row_of(std::vector<CheckRow>& rows, const Case& c) {
  const std::string precision(name(c.options.precision));
  const std::string format(name(c.input));
  for (CheckRow& row : rows)
    if (row.precision == precision && row.format == format) return row;
  CheckRow row;
  row.precision = precision;
  row.format = format;
  row.bound = bound_text(mode_bound(c.input, c.options.precision), c.input);
  rows.push_back(row);
  return rows.back();
}

void add_verdict(CheckReport& report, const Case& c, const Verdict& verdict) {
  if (!verdict.not_run.empty()) {
    ++report.not_run;
    auto& reasons = report.not_run_reasons;
    if (std::find(reasons.begin(), reasons.end(), verdict.not_run) == reasons.end())
      reasons.push_back(verdict.not_run);
    return;
  }
  ++report.cases;
  CheckRow& row = row_of(report.rows, c);
  ++row.cases;
  row.failed += verdict.failures.empty() ? 0 : 1;
  row.worst_total_error = std::max(row.worst_total_error, verdict.total_max);
  row.worst_kernel_error = std::max(row.worst_kernel_error, verdict.kernel_max);
  row.worst_total_rmse = std::max(row.worst_total_rmse, verdict.total_rmse);
  if (row.worst_case.empty() || verdict.bound_ratio > row.worst_bound_ratio) {
    row.worst_bound_ratio = verdict.bound_ratio;
    row.worst_case = c.name();
  }
  for (const std::string& failure : verdict.failures)
    report.failures.push_back(fmt::format("{}: {}", c.name(), failure));
}

// By precision in the order of the API, then by format.
void sort_rows(std::vector<CheckRow>& rows) {
  const auto key = [](const CheckRow& row) {
    return std::pair{parse_precision(row.precision).value(), parse_dtype(row.format).value()};
  };
  std::sort(rows.begin(), rows.end(),
            [&key](const CheckRow& a, const CheckRow& b) { return key(a) < key(b); });
}

}  // namespace

namespace {

// Tensors with their guards go to the device, and what it made of them comes back.
Status run_staged(const Arguments& arguments, const Options& options, Device device) {
  const Result<Problem> problem = problem_of(arguments, options);
  if (!problem.ok()) return problem.status();
  const Result<Plan> planned = plan(*problem, device);
  if (!planned.ok()) return planned.status();
  const Result<StagedArguments> staged =
      StagedArguments::make(arguments, *problem, device, kGuardBytes);
  if (!staged.ok()) return staged.status();
  const Result<Buffer> workspace = Buffer::make(device, planned->workspace_bytes());
  if (!workspace.ok()) return workspace.status();
  OCTAVO_RETURN_IF_ERROR(
      planned->run(staged->on_device(), {workspace->data(), workspace->bytes()}));
  OCTAVO_RETURN_IF_ERROR(synchronize(device));
  return staged->fetch();
}

}  // namespace

Runner library_runner(Device device) {
  if (device.kind != Device::Kind::cpu)
    return [device](const Arguments& arguments, const Options& options) {
      return run_staged(arguments, options, device);
    };
  return [device](const Arguments& arguments, const Options& options) -> Status {
    const Result<Problem> problem = problem_of(arguments, options);
    if (!problem.ok()) return problem.status();
    const Result<Plan> planned = plan(*problem, device);
    if (!planned.ok()) return planned.status();
    constexpr std::size_t kAlignment = 64;
    const std::size_t bytes = planned->workspace_bytes(arguments);
    std::vector<std::byte> memory(bytes + 2 * kGuardBytes + kAlignment, kPoison);
    void* aligned = memory.data() + kGuardBytes;
    std::size_t room = memory.size() - kGuardBytes;
    std::align(kAlignment, bytes + kGuardBytes, aligned, room);
    auto* const begin = static_cast<std::byte*>(aligned);
    OCTAVO_RETURN_IF_ERROR(planned->run(arguments, {begin, bytes}));
    const auto intact = [](std::byte b) { return b == kPoison; };
    if (!std::all_of(begin - kGuardBytes, begin, intact) ||
        !std::all_of(begin + bytes, begin + bytes + kGuardBytes, intact))
      return {ErrorCode::device_error,
              fmt::format("memory beyond the workspace of {} bytes was overwritten.", bytes)};
    return {};
  };
}

Result<CheckReport> check_cases(const CheckOptions& options, const std::vector<Case>& cases,
                                const Runner& runner) {
  CheckReport report;
  report.device = name(options.device);
  report.suite = options.suite;
  report.seed = options.seed;
  std::vector<Case> chosen;
  for (const Case& c : cases)
    if (!options.precision || c.options.precision == *options.precision) chosen.push_back(c);

  constexpr std::size_t kChunk = 64;
  std::set<std::string> names;
  for (std::size_t begin = 0; begin < chosen.size(); begin += kChunk) {
    const std::size_t count = std::min(kChunk, chosen.size() - begin);
    std::vector<Prepared> prepared = prepare_all(chosen.data() + begin, count);
    for (std::size_t i = 0; i < count; ++i) {
      const Case& c = chosen[begin + i];
      if (!prepared[i].status.ok()) return prepared[i].status;
      const std::int64_t cases_before = report.cases;
      add_verdict(report, c, run_case(c, prepared[i], runner, options.device.kind));
      if (report.cases > cases_before) names.insert(c.name());
      if (options.progress)
        options.progress(static_cast<std::int64_t>(begin + i + 1),
                         static_cast<std::int64_t>(chosen.size()));
    }
  }
  report.distinct = static_cast<std::int64_t>(names.size());
  sort_rows(report.rows);
  return report;
}

}  // namespace octavo::evidence

namespace octavo {

Result<CheckReport> check(const CheckOptions& options) {
  const Result<std::vector<evidence::Case>> cases =
      evidence::suite_cases(options.suite, options.seed);
  if (!cases.ok()) return cases.status();
  // A device that is not there is the caller's to fix, not the failure of two thousand cases.
  Problem probe;
  probe.batch = probe.heads_q = probe.heads_kv = probe.len_q = probe.len_kv = 1;
  probe.head_dim = probe.head_dim_v = 64;
  if (const Result<Plan> planned = plan(probe, options.device); !planned.ok())
    return planned.status();
  return evidence::check_cases(options, *cases, evidence::library_runner(options.device));
}

}  // namespace octavo
