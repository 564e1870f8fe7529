// SPDX-License-Identifier: Apache-2.0
// Runs cases, judges them, and keeps the worst result of each precision and input format.
#include "evidence/gates/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <set>
#include <thread>

#include "base/error.h"
#include "cpu/thread_pool.h"
#include "evidence/cases/inputs.h"
#include "evidence/gates/gpu_suite.h"
#include "evidence/oracle/bounds.h"
#include "evidence/oracle/gpu_oracle.h"
#include "evidence/oracle/judge.h"
#include "numeric/formats.h"

namespace octavo::evidence {
namespace {

// A case in progress: its memory and the results of the oracle, then the result of a run, then the
// verdict.
struct Work {
  Status status;
  Inputs inputs;
  Truth truth;
  double oracle_difference = -1;  // not compared
  Verdict verdict;
  bool ran = false;
  std::vector<std::byte> out, lse, amax;  // after the last call
  double emulated_difference = -1;        // negative: not compared
};

// Calls work(i, thread) for all i below count, on `threads` threads; the caller's is thread 0.
void on_threads(std::size_t threads, std::size_t count,
                const std::function<void(std::size_t, std::size_t)>& work) {
  std::atomic<std::size_t> next = 0;
  cpu::on_own_threads(static_cast<int>(threads), [&](int thread) {
    for (std::size_t i = next++; i < count; i = next++) work(i, static_cast<std::size_t>(thread));
  });
}
void on_all_cores(std::size_t count, const std::function<void(std::size_t)>& work) {
  on_threads(std::max(std::thread::hardware_concurrency(), 1U), count,
             [&work](std::size_t i, std::size_t) { work(i); });
}

// Whether the oracles are compared: on every fourth case, if the CPU's oracle takes only a fraction
// of a second.
bool compares_oracles(const Case& c, std::size_t number) {
  constexpr double kMostProducts = 2e7;
  const double products = static_cast<double>(c.batch * c.heads_q) *
                          static_cast<double>(c.seqlen_q * c.seqlen_kv) *
                          static_cast<double>(std::max(c.head_dim, c.v_columns()));
  return number % 4 == 0 && products < kMostProducts && c.sampled_rows == 0;
}

Status prepare(const Case& c, std::size_t number, const CheckOracle& oracle, bool p_is_rounded,
               Work& work) {
  Result<Inputs> inputs = make_inputs(c);
  if (!inputs.ok()) return inputs.status();
  work.inputs = std::move(inputs).value();
  Result<Truth> truth = make_truth(c, work.inputs, {oracle.oracle, p_is_rounded});
  if (!truth.ok()) return truth.status();
  work.truth = std::move(truth).value();
  if (oracle.is_cpu() || !compares_oracles(c, number)) return {};
  const Result<Truth> second = make_truth(c, work.inputs, {cpu_oracle, p_is_rounded});
  if (!second.ok()) return second.status();
  work.oracle_difference = oracle_difference(work.truth, *second);
  return {};
}

// Runs `repeat` times, each into freshly poisoned outputs: the bits must repeat, and nothing may
// survive from the previous run.
void run_case(const Case& c, Work& work, const Runner& runner, const CheckOptions& options) {
  const Runner forced =
      c.config.empty() ? runner
                       : runner_of(options.device, kernel_of_config(c.config), OnStream::standard);
  const Result<Call> call = forced(work.inputs.given, c.options);
  Status status = call.status();
  std::vector<std::byte> first_out, first_lse, first_amax;
  for (int run = 0; run < options.repeat && status.ok(); ++run) {
    poison_outputs(work.inputs);
    status = (*call)();
    if (run == 0) {
      first_out = work.inputs.out.bytes;
      first_lse = work.inputs.lse.bytes;
      first_amax = work.inputs.amax.bytes;
    } else if (first_out != work.inputs.out.bytes || first_lse != work.inputs.lse.bytes ||
               first_amax != work.inputs.amax.bytes) {
      work.verdict.failures.push_back(
          fmt::format("run {} on the same inputs and the first differ in their bits", run + 1));
      break;
    }
  }
  work.ran = status.ok();
  work.out = work.inputs.out.bytes;
  work.lse = work.inputs.lse.bytes;
  work.amax = work.inputs.amax.bytes;
  if (status.ok()) return;
  // The CPU serves every case: a refusal is a failure.
  if (status.code() == ErrorCode::unsupported && options.device.kind != Device::Kind::cpu)
    work.verdict.not_run = status.message();
  else
    work.verdict.failures.push_back(fmt::format("run failed: {}", status.message()));
}

// The relative distance between two neighbouring values of a type.
double step_of(DType type) {
  return type == DType::f16 ? 0x1p-10 : type == DType::bf16 ? 0x1p-7 : 0;
}

// The largest difference between `out` and `other` beyond one step of the type, which rounding may
// cause. It is relative to the largest output if that is above 1.
double difference(const Case& c, const Inputs& in, const std::vector<std::byte>& other) {
  const Tensor& t = in.out.view;
  const auto offset = static_cast<const std::byte*>(t.data) - in.out.bytes.data();
  const std::byte* const there = other.data() + offset;
  double largest = 1, apart = 0;
  for (const Span& span : in.spans_q)
    for (std::int64_t h = 0; h < c.heads_q; ++h)
      for (std::int64_t s = span.begin; s < span.begin + span.length; ++s)
        for (std::int64_t d = 0; d < c.v_columns(); ++d) {
          const std::int64_t at =
              span.batch * t.stride[0] + h * t.stride[1] + s * t.stride[2] + d * t.stride[3];
          const double a = load_element(t.dtype, t.data, at), b = load_element(t.dtype, there, at);
          if (!std::isfinite(a) || !std::isfinite(b)) return HUGE_VAL;
          const double most = std::max(std::abs(a), std::abs(b));
          largest = std::max(largest, most);
          apart = std::max(apart, std::abs(a - b) - step_of(t.dtype) * most);
        }
  return apart / largest;
}

// Cases that the emulator does not serve are not compared, nor are 8-bit outputs, whose steps are
// wider than the allowed difference.
void compare_with_emulator(const Case& c, Work& work, const Runner& emulator) {
  if (!work.ran || is_8bit(c.out)) return;
  const Result<Call> call = emulator(work.inputs.given, c.options);
  if (!call.ok() && call.status().code() == ErrorCode::unsupported) return;
  poison_outputs(work.inputs);
  const Status status = call.ok() ? (*call)() : call.status();
  if (!status.ok()) {
    work.verdict.failures.push_back(fmt::format("emulated: {}", status.message()));
    return;
  }
  work.emulated_difference = difference(c, work.inputs, work.out);
  if (!(work.emulated_difference <= kEmulatedDifference))
    work.verdict.failures.push_back(
        fmt::format("differs by {:.2e} from the same kernel in the emulator; {:.0e} is allowed",
                    work.emulated_difference, kEmulatedDifference));
  work.inputs.out.bytes = work.out;
  work.inputs.lse.bytes = work.lse;
  work.inputs.amax.bytes = work.amax;
}

void judge_case(const Case& c, Work& work, Device::Kind kind) {
  if (!work.ran) return;
  const bool late = work.out != work.inputs.out.bytes || work.lse != work.inputs.lse.bytes ||
                    work.amax != work.inputs.amax.bytes;
  std::copy(work.out.begin(), work.out.end(), work.inputs.out.bytes.begin());
  std::copy(work.lse.begin(), work.lse.end(), work.inputs.lse.bytes.begin());
  std::copy(work.amax.begin(), work.amax.end(), work.inputs.amax.bytes.begin());
  if (late)
    work.verdict.failures.push_back("out, lse or out_amax was written after the call had returned");
  Verdict verdict = judge(c, work.inputs, work.truth, kind);
  for (std::string& failure : work.verdict.failures) verdict.failures.push_back(std::move(failure));
  if (work.oracle_difference > 1)
    verdict.failures.push_back(
        fmt::format("the oracles of the device and the CPU differ {:.1f} times as much as sums in "
                    "another order may",
                    work.oracle_difference));
  work.verdict = std::move(verdict);
}

CheckRow& row_of(std::vector<CheckRow>& rows, const Case& c) {
  const std::string precision(name(c.options.precision));
  std::string format(name(c.input));
  if (c.kv) format += fmt::format(" over {}", name(*c.kv));
  for (CheckRow& row : rows)
    if (row.precision == precision && row.format == format) return row;
  CheckRow row;
  row.precision = precision;
  row.format = format;
  row.bound = bound_text(
      c.kv ? mode_bound_over(c.input, *c.kv) : mode_bound(c.input, c.options.precision), c.input);
  rows.push_back(row);
  return rows.back();
}

void add_verdict(CheckReport& report, const Case& c, const Work& work) {
  const Verdict& verdict = work.verdict;
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
  if (work.emulated_difference >= 0) {
    ++report.emulated;
    report.emulated_difference = std::max(report.emulated_difference, work.emulated_difference);
  }
  if (work.oracle_difference < 0) return;
  ++report.oracle_compared;
  report.oracle_difference = std::max(report.oracle_difference, work.oracle_difference);
}

// By precision in the order of the API, then by format; quantized K and V last.
void sort_rows(std::vector<CheckRow>& rows) {
  const auto key = [](const CheckRow& row) {
    const std::size_t over = std::min(row.format.find(' '), row.format.size());
    return std::tuple{parse_precision(row.precision).value(),
                      parse_dtype(row.format.substr(0, over)).value(), row.format.substr(over)};
  };
  std::sort(rows.begin(), rows.end(),
            [&key](const CheckRow& a, const CheckRow& b) { return key(a) < key(b); });
}

}  // namespace

std::vector<Case> chosen_cases(const CheckOptions& options, const std::vector<Case>& suite) {
  std::vector<Case> of_precision;
  for (const Case& c : suite)
    if (!options.precision || c.options.precision == *options.precision) of_precision.push_back(c);
  if (options.overlap_launch)
    for (Case& c : of_precision) c.options.overlap_launch = true;
  if (options.cases == 0) return of_precision;
  std::vector<Case> chosen;
  for (const std::int64_t i :
       spread_rows(static_cast<std::int64_t>(of_precision.size()), options.cases))
    chosen.push_back(of_precision[static_cast<std::size_t>(i)]);
  return chosen;
}

namespace {

Result<CheckReport> check_each(const CheckOptions& options, const std::vector<Case>& cases,
                               const std::vector<Runner>& runners, const Runner& emulator,
                               const CheckOracle& oracle) {
  CheckReport report;
  report.device = name(options.device);
  report.suite = options.suite;
  report.seed = options.seed;
  report.repeat = options.repeat;
  report.streams = options.streams;
  report.overlap_launch = options.overlap_launch;
  report.oracle = oracle.name;
  const bool p_is_rounded = options.device.kind != Device::Kind::cpu;

  constexpr std::size_t kChunk = 64;
  std::set<std::string> names;
  for (std::size_t begin = 0; begin < cases.size(); begin += kChunk) {
    const std::size_t count = std::min(kChunk, cases.size() - begin);
    std::vector<Work> chunk(count);
    // Inputs, oracle and judge use one thread per case; runs use one thread per runner.
    on_all_cores(count, [&](std::size_t i) {
      chunk[i].status = prepare(cases[begin + i], begin + i, oracle, p_is_rounded, chunk[i]);
    });
    for (const Work& work : chunk)
      if (!work.status.ok()) return work.status;
    on_threads(runners.size(), count, [&](std::size_t i, std::size_t thread) {
      run_case(cases[begin + i], chunk[i], runners[thread], options);
      if (options.progress && thread == 0)
        options.progress(static_cast<std::int64_t>(begin + i + 1),
                         static_cast<std::int64_t>(cases.size()));
    });
    if (emulator)
      for (std::size_t i = 0; i < count; ++i)
        compare_with_emulator(cases[begin + i], chunk[i], emulator);
    on_all_cores(
        count, [&](std::size_t i) { judge_case(cases[begin + i], chunk[i], options.device.kind); });
    for (std::size_t i = 0; i < count; ++i) {
      add_verdict(report, cases[begin + i], chunk[i]);
      if (chunk[i].verdict.not_run.empty()) names.insert(cases[begin + i].name());
    }
  }
  report.distinct = static_cast<std::int64_t>(names.size());
  sort_rows(report.rows);
  return report;
}

}  // namespace

Result<CheckReport> check_cases(const CheckOptions& options, const std::vector<Case>& cases,
                                const Runner& runner, const CheckOracle& oracle) {
  return check_each(options, cases, {runner}, nullptr, oracle);
}
Result<CheckReport> check_cases(const CheckOptions& options, const std::vector<Case>& cases,
                                const std::vector<Runner>& runners, const CheckOracle& oracle) {
  return check_each(options, cases, runners, nullptr, oracle);
}
Result<CheckReport> check_against_emulator(const CheckOptions& options,
                                           const std::vector<Case>& cases, const Runner& runner,
                                           const Runner& emulator, const CheckOracle& oracle) {
  return check_each(options, cases, {runner}, emulator, oracle);
}

}  // namespace octavo::evidence

namespace octavo {
namespace {

Status validate_options(const CheckOptions& options) {
  constexpr int kMost = 1'000'000, kMostStreams = 64;
  // With one schedule the emulator always gives the same bits, so one run is enough.
  const int fewest = options.device.kind == Device::Kind::emulator ? 1 : 2;
  if (options.repeat < fewest || options.repeat > kMost)
    return invalid("repeat", fmt::format("{}", options.repeat),
                   fmt::format("{} to 1000000", fewest));
  if (options.streams < 0 || options.streams > kMostStreams)
    return invalid("streams", fmt::format("{}", options.streams),
                   fmt::format("0 to {}", kMostStreams));
  const bool on_gpu = options.device.kind == Device::Kind::cuda;
  if ((options.suite == "configs" || options.suite == "emulated") && !on_gpu)
    return invalid("suite", fmt::format("\"{}\" on {}", options.suite, name(options.device)),
                   "all, twelve, presets, decode, block_mask");
  if (options.suite == "emulated" && options.streams > 0)
    return invalid("streams", fmt::format("{} with suite \"emulated\"", options.streams), "0");
  if (options.cases < 0) return invalid("cases", fmt::format("{}", options.cases), "0 or more");
  return {};
}

// A missing device is the caller's error, reported once instead of as two thousand failed cases.
Status probe(Device device) {
  Problem typical;
  typical.batch = typical.heads_q = typical.heads_kv = typical.seqlen_q = typical.seqlen_kv = 1;
  typical.head_dim = typical.head_dim_v = 64;
  return plan(typical, device).status();
}

Result<std::vector<evidence::Case>> suite_of(const CheckOptions& options) {
  if (options.suite == "configs") return evidence::config_cases(options.seed);
  if (options.suite == "emulated") return evidence::cases_of_emulator(options.seed);
  if (options.suite == "all" && options.device.kind == Device::Kind::cuda)
    return evidence::gpu_cases(options.device, options.seed);
  if (options.suite == "all" && options.device.kind == Device::Kind::emulator)
    return evidence::emulator_cases(options.device, options.seed,
                                    options.cases > 0 ? options.cases : evidence::kEmulatorCases);
  Result<std::vector<evidence::Case>> cases = evidence::suite_cases(options.suite, options.seed);
  if (cases.ok() && options.suite == "all" && options.device.kind == Device::Kind::cpu)
    for (evidence::Case& c : evidence::size_cases(options.seed)) cases->push_back(std::move(c));
  return cases;
}

// One runner, or one per stream. Every other one calls attention(), so that both shared plans and
// separate plans are tested.
std::vector<evidence::Runner> runners_of(const CheckOptions& options) {
  using namespace evidence;
  if (options.streams == 0) return {library_runner(options.device)};
  std::vector<Runner> runners;
  for (int i = 0; i < options.streams; ++i)
    runners.push_back(
        runner_of(options.device, i % 2 == 0 ? library_kernel : one_call_kernel, OnStream::own));
  return runners;
}

}  // namespace

Result<CheckReport> check(const CheckOptions& options) {
  return without_exceptions([&]() -> Result<CheckReport> {
    OCTAVO_RETURN_IF_ERROR(validate_options(options));
    OCTAVO_RETURN_IF_ERROR(probe(options.device));
    const Result<std::vector<evidence::Case>> suite = suite_of(options);
    if (!suite.ok()) return suite.status();
    const bool on_gpu = options.device.kind == Device::Kind::cuda;
    const std::vector<evidence::Case> cases = evidence::chosen_cases(options, *suite);
    const std::int64_t kernels =
        on_gpu ? evidence::compile_kernels(options.device, cases, options.compile_progress) : 0;
    const evidence::CheckOracle oracle = evidence::oracle_for(options.device);
    Result<CheckReport> report =
        options.suite == "emulated"
            ? check_against_emulator(options, cases, evidence::library_runner(options.device),
                                     evidence::library_runner(evidence::kEmulatedHopper), oracle)
            : check_cases(options, cases, runners_of(options), oracle);
    if (report.ok()) report->kernels = kernels;
    return report;
  });
}

}  // namespace octavo
