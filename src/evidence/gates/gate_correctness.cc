// SPDX-License-Identifier: Apache-2.0
// The correctness gate: the case tables with several seeds, every length of the last key block,
// problems of all sizes that are drawn anew for every run, and inputs that change under the same
// pointers.
//
// Everything runs on a separate stream, and only that stream is waited for: work on another stream
// is missing when the result is judged. Outputs are poisoned before every call.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "evidence/cases/inputs.h"
#include "evidence/gates/check.h"
#include "evidence/gates/gate.h"
#include "evidence/gates/gpu_suite.h"
#include "evidence/oracle/judge.h"

namespace octavo::evidence {
namespace {

constexpr std::uint64_t kSeedStep = 1'000'003;

std::vector<Case> thinned(const std::vector<Case>& cases, std::int64_t count) {
  CheckOptions options;
  options.cases = count;
  return chosen_cases(options, cases);
}

// Keys that end at every position in a block, for every kernel: the largest block has 256.
std::vector<Case> key_tails(std::uint64_t seed) {
  constexpr std::int64_t kLargestBlock = 256;
  std::vector<Case> cases;
  for (const auto& [head_dim, precision] :
       {std::pair{64, Precision::native}, {128, Precision::native}, {64, Precision::fp8}})
    for (std::int64_t keys = 1; keys <= kLargestBlock + 1; ++keys) {
      Case c;
      c.seqlen_q = 8;
      c.seqlen_kv = keys;
      c.head_dim = head_dim;
      c.options.precision = precision;
      c.seed = seed;
      cases.push_back(c);
    }
  return cases;
}

// The same with a grid that fills a GPU, for which other kernels are chosen.
std::vector<Case> long_key_tails(std::uint64_t seed) {
  constexpr std::int64_t kTails = 32;
  std::vector<Case> cases;
  for (std::int64_t tail = 1; tail <= kTails; ++tail) {
    Case c;
    c.batch = 2;
    c.heads_q = c.heads_kv = 16;
    c.seqlen_q = 512;
    c.seqlen_kv = 1024 + 7 * tail;  // 7 is coprime to every block size: each tail differs
    c.sampled_rows = 4;
    c.seed = seed;
    cases.push_back(c);
  }
  return cases;
}

// The problems of all sizes that the device can run in reasonable time.
std::vector<Case> drawn_cases(const GateOptions& options) {
  constexpr double kMostEmulated = 1e6;
  constexpr std::size_t kMostKernels = 120;
  const std::uint64_t seed = options.draw_seed.value_or(0);
  if (options.device.kind == Device::Kind::cpu) return size_cases(seed);
  if (options.device.kind == Device::Kind::cuda)
    return gpu_only_served(options.device, size_cases(seed, {.head_dim_step = 8}), kMostKernels);
  std::vector<Case> cases = size_cases(seed, {.head_dim_step = 8, .most_products = kMostEmulated});
  std::erase_if(cases, [](const Case& c) { return c.sampled_rows > 0; });  // too long there
  return cases;
}

// A few problems whose inputs change in place from one call to the next.
std::vector<Case> changing_cases() {
  std::vector<Case> cases(2);
  for (Case& c : cases) {
    c.batch = 2;
    c.heads_q = c.heads_kv = 2;
    c.seqlen_q = c.seqlen_kv = 80;
  }
  cases[1].head_dim = 128;
  cases[1].options.causal = Causal::top_left;
  return cases;
}

void overwrite(Inputs& inputs, const Inputs& with) {
  for (Inputs::Operand Inputs::*operand : {&Inputs::q, &Inputs::k, &Inputs::v}) {
    const std::vector<std::byte>& from = (with.*operand).wide.bytes;
    std::copy(from.begin(), from.end(), (inputs.*operand).wide.bytes.begin());
  }
}

// Seeds a, b, a, c, ... under the same pointers: a cached result would belong to other inputs.
Status check_changing(const Case& run_problem, const GateOptions& options, const Runner& runner,
                      std::vector<std::string>& failures) {
  Result<Inputs> inputs = make_inputs(run_problem);
  if (!inputs.ok()) return inputs.status();
  for (int round = 0; round < 2 * options.seeds; ++round) {
    Case c = run_problem;
    c.seed = options.seed + kSeedStep * static_cast<std::uint64_t>(round % 2 == 0 ? 0 : round);
    const Result<Inputs> fresh = make_inputs(c);
    if (!fresh.ok()) return fresh.status();
    const Result<Truth> truth =
        make_truth(c, *fresh, {cpu_oracle, options.device.kind != Device::Kind::cpu});
    if (!truth.ok()) return truth.status();
    overwrite(*inputs, *fresh);
    poison_outputs(*inputs);
    const Result<Call> call = runner(inputs->given, c.options);
    if (call.status().code() == ErrorCode::unsupported) return {};
    const Status status = call.ok() ? (*call)() : call.status();
    if (!status.ok()) {
      failures.push_back(fmt::format("{}: run failed: {}", c.name(), status.message()));
      return {};
    }
    for (const std::string& failure : judge(c, *inputs, *truth, options.device.kind).failures)
      failures.push_back(
          fmt::format("{}, inputs changed in place, call {}: {}", c.name(), round + 1, failure));
  }
  return {};
}

}  // namespace

std::vector<Case> gate_cases(const GateOptions& options) {
  constexpr std::int64_t kRandom = 100;  // per seed
  const bool on_gpu = options.device.kind == Device::Kind::cuda;
  std::vector<Case> cases = thinned(twelve_cases(), options.cases);
  const auto add = [&cases](const std::vector<Case>& more) {
    cases.insert(cases.end(), more.begin(), more.end());
  };
  for (int i = 0; i < options.seeds; ++i) {
    const std::uint64_t seed = options.seed + kSeedStep * static_cast<std::uint64_t>(i);
    add(thinned(on_gpu ? gpu_cases(options.device, seed) : all_cases(seed),
                options.cases > 0 ? options.cases : kRandom));
  }
  add(thinned(key_tails(options.seed), options.cases));
  add(thinned(drawn_cases(options), options.cases));
  if (on_gpu) add(thinned(long_key_tails(options.seed), options.cases));
  return cases;
}

Result<GateResult> correctness_gate(const GateOptions& options,
                                    const std::vector<Threshold>& thresholds,
                                    const GateSubject& subject) {
  GateResult result;
  result.name = "correctness";
  const Runner runner = runner_of(options.device, subject.make_kernel, OnStream::own);
  CheckOptions check;
  check.device = options.device;
  check.suite = "gate";
  check.seed = options.seed;
  check.progress = options.progress;
  const std::vector<Case> cases = gate_cases(options);
  const std::int64_t kernels =
      options.device.kind == Device::Kind::cuda ? compile_kernels(options.device, cases, {}) : 0;
  Result<CheckReport> report = check_cases(check, cases, runner, oracle_for(options.device));
  if (!report.ok()) return report.status();
  report->kernels = kernels;
  for (const Case& c : changing_cases())
    OCTAVO_RETURN_IF_ERROR(check_changing(c, options, runner, report->failures));
  result.check = std::move(report).value();
  const CheckReport& checked = *result.check;
  if (checked.cases == 0) {
    result.reason =
        checked.not_run_reasons.empty() ? "no case was run." : checked.not_run_reasons.front();
    return result;
  }
  if (checked.not_run > 0)
    result.left_out.push_back(
        fmt::format("{} cases that {} does not serve.", checked.not_run, checked.device));
  check_threshold(result, thresholds, "cases", checked.device, "", 0,
                  static_cast<double>(checked.cases));
  check_threshold(result, thresholds, "failed_cases", checked.device, "", 0,
                  static_cast<double>(checked.failures.size()));
  result.failures.insert(result.failures.end(), checked.failures.begin(), checked.failures.end());
  result.reason = fmt::format("{} problems of {} seeds and of draw seed {} against fp64",
                              checked.cases, options.seeds, options.draw_seed.value_or(0));
  result.state = result.failures.empty() ? GateState::passed : GateState::failed;
  return result;
}

}  // namespace octavo::evidence
