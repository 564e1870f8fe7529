// SPDX-License-Identifier: Apache-2.0
// The gates: the library passes, and each planted fault is rejected by the intended gate, while the
// gates after it are blocked.
#include "evidence/gates/gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "attention/reference.h"
#include "evidence/bench/machine.h"
#include "evidence/bench/stats.h"
#include "evidence/gates/check.h"
#include "numeric/formats.h"

namespace octavo::evidence {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kSamples = 40;

// Deterministic times around `us`, a percent apart from each other.
std::vector<double> samples_around(double us, std::uint64_t seed) {
  std::vector<double> samples;
  for (std::size_t i = 0; i < kSamples; ++i)
    samples.push_back(us * (1 + 0.01 * (static_cast<double>((i * 7 + seed * 3) % 11) - 5) / 5));
  return samples;
}

const std::map<std::string, double> kRecordedUs = {{"mission", 6}, {"small", 8}, {"long", 54}};

std::string baseline_text() {
  Json rows = Json::array();
  for (const auto& [name, us] : kRecordedUs)
    rows.push_back({{"name", name},
                    {"batch", 1},
                    {"heads", 8},
                    {"length", 512},
                    {"head_dim", 64},
                    {"samples_us", samples_around(us, 1)}});
  return Json{{"schema", 1},
              {"kind", "bench"},
              {"machine", machine_of({})},
              {"dtype", "f16"},
              {"attention", {{"causal", "none"}, {"precision", "native"}}},
              {"rows", rows}}
      .dump();
}

std::string counters_text(double tensor_active, double conflicts) {
  return Json{{"schema", 1},
              {"kind", "counters"},
              {"rows",
               {{{"name", "long"},
                 {"kernel", "sm90_forward"},
                 {"gflop", 172},
                 {"metrics",
                  {{"tensor_active_pct", tensor_active},
                   {"bank_conflict_cycles_pct", conflicts},
                   {"bank_conflicts_per_wavefront", 0.115},
                   {"warps_active_pct", 18.7},
                   {"dram_pct", nullptr}}}}}}}
      .dump();
}

KernelInfo sound_kernel() {
  KernelInfo info;
  info.kernel = "sm90_forward";
  info.config = "Sm90ForwardConfig{.element=Element::f16}";
  info.arch = 90;
  info.threads = 384;
  info.dynamic_smem_bytes = 200 * 1024;
  info.code = KernelCode{.registers = 168, .instructions = 4000, .mma_f16 = 64};
  return info;
}

// The library on the CPU, with a clock that returns the recorded times and a kernel with valid
// code: faults replace one of the three.
GateSubject sound_subject() {
  return {[] { return std::vector<KernelInfo>{sound_kernel()}; }, library_kernel,
          [](const BenchOptions&, const BenchCase& shape) -> Result<std::vector<double>> {
            static std::uint64_t seed = 2;
            return samples_around(kRecordedUs.at(shape.name), ++seed);
          }};
}

GateOptions quick_options() {
  GateOptions options;
  options.cases = 6;
  options.baseline = baseline_text();
  options.counters = counters_text(61, 0.001);
  return options;
}

// For tests of later gates: the correctness gate only has to pass.
GateOptions quickest_options() {
  GateOptions options = quick_options();
  options.cases = 1;
  return options;
}

GateReport gates_of(const GateSubject& subject, const GateOptions& options = quick_options()) {
  const Result<GateReport> report = run_gates(options, subject);
  EXPECT_TRUE(report.ok()) << report.status().message();
  return report.ok() ? *report : GateReport{};
}

bool names(const GateResult& gate, std::string_view what) {
  for (const std::string& failure : gate.failures)
    if (failure.find(what) != std::string::npos) return true;
  return false;
}

// Expects failure at the gate of that index, with a line that contains `what`; passed before,
// blocked after.
void expect_rejected_by(std::size_t number, const GateReport& report, std::string_view what) {
  EXPECT_FALSE(report.passed());
  for (std::size_t i = 0; i < report.gates.size(); ++i)
    EXPECT_EQ(report.gates[i].state, i < number    ? GateState::passed
                                     : i == number ? GateState::failed
                                                   : GateState::blocked)
        << report.gates[i].name << ": " << report.gates[i].reason;
  EXPECT_TRUE(names(report.gates[number], what))
      << "no failure by " << what << "; first: "
      << (report.gates[number].failures.empty() ? "none" : report.gates[number].failures[0]);
}
enum : std::size_t { kCompile, kCorrectness, kPerformance, kCounters };

// The library's kernel with another run function.
using RunInstead = std::function<Status(const Kernel&, const Arguments&, Workspace, Stream)>;
GateSubject with_run(const RunInstead& run) {
  GateSubject subject = sound_subject();
  subject.make_kernel = [run](const Problem& problem, Device device) -> Result<Kernel> {
    const Result<Kernel> made = library_kernel(problem, device);
    if (!made.ok()) return made.status();
    return Kernel{made->workspace_bytes,
                  [run, kernel = *made](const Arguments& a, Workspace w, Stream s) {
                    return run(kernel, a, w, s);
                  }};
  };
  return subject;
}

std::size_t out_bytes(const Arguments& a) {
  std::int64_t last = 1;
  for (std::size_t i = 0; i < 4; ++i) last += (a.out.shape[i] - 1) * a.out.stride[i];
  return static_cast<std::size_t>(last) * size_bytes(a.out.dtype);
}

TEST(Gate, TheLibraryPassesAll) {
  const GateReport report = gates_of(sound_subject());
  EXPECT_TRUE(report.passed());
  for (const GateResult& gate : report.gates)
    EXPECT_EQ(gate.state, GateState::passed)
        << gate.name << ": " << (gate.failures.empty() ? gate.reason : gate.failures[0]);
  EXPECT_GE(report.gates[kCorrectness].check->cases, 5 * 6);
  EXPECT_EQ(report.gates[kPerformance].timings.size(), 3U);
  EXPECT_EQ(report.gates[kCounters].left_out.size(), 1U) << "dram_pct was not counted";
}

TEST(Gate, UnmeasuredGatesAreNotPassed) {
  GateOptions options;
  options.cases = 4;
  GateSubject subject = sound_subject();
  subject.kernels = [] { return Status(ErrorCode::unsupported, "there is no compiler."); };
  const GateReport report = gates_of(subject, options);
  EXPECT_EQ(report.gates[kCompile].state, GateState::not_measured);
  EXPECT_EQ(report.gates[kCompile].reason, "there is no compiler.");
  EXPECT_EQ(report.gates[kCorrectness].state, GateState::passed);
  EXPECT_EQ(report.gates[kPerformance].state, GateState::not_measured);
  EXPECT_EQ(report.gates[kCounters].state, GateState::not_measured);
  EXPECT_TRUE(report.passed());
  const Json json = Json::parse(to_json(report));
  EXPECT_EQ(json["kind"], "gate");
  EXPECT_EQ(json["gates"][0]["state"], "not measured");
  EXPECT_EQ(json["gates"][1]["check"]["failures"].size(), 0U);
}

TEST(GateFault, SpillsMissingOrOtherTensorInstructions) {
  const auto with_code = [](const std::function<void(KernelInfo&)>& change) {
    GateSubject subject = sound_subject();
    subject.kernels = [change] {
      KernelInfo info = sound_kernel();
      change(info);
      return std::vector<KernelInfo>{sound_kernel(), info};
    };
    return gates_of(subject);
  };
  expect_rejected_by(kCompile, with_code([](KernelInfo& i) { i.code->local_bytes = 16; }),
                     "spill_bytes is 16; supported: at most 0");
  expect_rejected_by(kCompile, with_code([](KernelInfo& i) { i.code->mma_f16 = 0; }),
                     "tensor_instructions is 0");
  expect_rejected_by(kCompile, with_code([](KernelInfo& i) { i.code->mma_fp8 = 8; }),
                     "other_tensor_instructions is 8");
  expect_rejected_by(kCompile, with_code([](KernelInfo& i) { i.dynamic_smem_bytes = 240 << 10; }),
                     "smem_of_limit");
  expect_rejected_by(kCompile, with_code([](KernelInfo& i) { i.threads = 512; }),
                     "registers_of_block is 86016");
  expect_rejected_by(kCompile, with_code([](KernelInfo& i) {
                       i.code.reset();
                       i.status = Status(ErrorCode::unsupported, "it did not compile.");
                     }),
                     "it did not compile.");
}

TEST(GateFault, LastKeyBlockSkipped) {
  constexpr std::int64_t kBlock = 64;
  expect_rejected_by(
      kCorrectness,
      gates_of(with_run([](const Kernel& kernel, const Arguments& a, Workspace w, Stream s) {
        Arguments fewer = a;
        if (a.k.shape[2] > kBlock && a.cu_seqlens_kv == nullptr)
          fewer.k.shape[2] = fewer.v.shape[2] = (a.k.shape[2] - 1) / kBlock * kBlock;
        return kernel.run(fewer, w, s);
      })),
      "kernel error");
}

TEST(GateFault, PreviousOutputReturned) {
  // Right whenever the shape is new: only a call with other values in the same memory detects it.
  std::map<const void*, std::vector<std::byte>> kept;
  const GateReport report =
      gates_of(with_run([&kept](const Kernel& kernel, const Arguments& a, Workspace w, Stream s) {
        std::vector<std::byte>& previous = kept[a.q.data];
        const std::size_t bytes = out_bytes(a);
        const bool inputs_in_place = a.q.shape[2] == 80 && a.q.shape[0] == 2;
        if (inputs_in_place && previous.size() == bytes) {
          std::memcpy(a.out.data, previous.data(), bytes);
          Arguments elsewhere = a;
          std::vector<std::byte> other(bytes);
          elsewhere.out.data = other.data();
          return kernel.run(elsewhere, w, s);
        }
        const Status status = kernel.run(a, w, s);
        previous.resize(bytes);
        std::memcpy(previous.data(), a.out.data, bytes);
        return status;
      }));
  expect_rejected_by(kCorrectness, report, "inputs changed in place, call 2");
}

TEST(GateFault, RightOnlyForOneSeed) {
  // Remembers the first values of a shape, and is right only for those.
  std::map<std::array<std::int64_t, 4>, float> seen;
  expect_rejected_by(
      kCorrectness,
      gates_of(with_run([&seen](const Kernel& kernel, const Arguments& a, Workspace w, Stream s) {
        const Status status = kernel.run(a, w, s);
        if (a.q.dtype != DType::f16 || !status.ok()) return status;
        const float first = load_element(a.q.dtype, a.q.data, 0);
        const auto [at, is_new] = seen.emplace(a.q.shape, first);
        if (at->second != first) std::memset(a.out.data, 0, 2 * 64);
        return status;
      })),
      "kernel error");
}

// The library, writing its result two milliseconds after the call has returned. The kernel's
// destructor joins the thread before its memory is freed.
Result<Kernel> late_kernel(const Problem& problem, Device device) {
  struct Late {
    std::thread thread;
    ~Late() { join(); }
    void join() {
      if (thread.joinable()) thread.join();
    }
  };
  const Result<Kernel> made = library_kernel(problem, device);
  if (!made.ok()) return made.status();
  const auto late = std::make_shared<Late>();
  return Kernel{made->workspace_bytes,
                [kernel = *made, late](const Arguments& a, Workspace w, Stream s) {
                  late->join();
                  auto right = std::make_shared<std::vector<std::byte>>(out_bytes(a));
                  Arguments elsewhere = a;
                  elsewhere.out.data = right->data();
                  const Status status = kernel.run(elsewhere, w, s);
                  late->thread = std::thread([right, out = a.out.data] {
                    std::this_thread::sleep_for(std::chrono::milliseconds(2));
                    std::memcpy(out, right->data(), right->size());
                  });
                  return status;
                }};
}

TEST(GateFault, ContinuesAfterTheCallHasReturned) {
  GateSubject subject = sound_subject();
  subject.make_kernel = late_kernel;
  expect_rejected_by(kCorrectness, gates_of(subject), "elements not written");
}

TEST(GateFault, LateResultIsNotAccepted) {
  CheckOptions once;
  once.repeat = 1;
  Case c;
  c.seqlen_q = c.seqlen_kv = 80;
  const auto report = check_cases(once, {c}, runner_of({}, late_kernel, OnStream::own));
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->failures.size(), 3U);
  EXPECT_NE(report->failures[0].find("out: 5120 elements not written"), std::string::npos);
  EXPECT_NE(report->failures[2].find("written after the call had returned"), std::string::npos);
}

TEST(GateFault, LowerPrecisionThanDeclared) {
  // E4M3 weights where 16-bit ones were declared, and f16 inputs where f32 was.
  expect_rejected_by(
      kCorrectness,
      gates_of(with_run([](const Kernel& kernel, const Arguments& a, Workspace w, Stream s) {
        const Status status = kernel.run(a, w, s);
        if (a.out.dtype != DType::f16 || a.cu_seqlens_kv != nullptr || a.k.shape[2] < 2)
          return status;
        std::vector<double> out(static_cast<std::size_t>(a.out.shape[0] * a.out.shape[1] *
                                                         a.out.shape[2] * a.out.shape[3]));
        TiledRounding rounding;
        rounding.p_format = DType::e4m3;
        rounding.p_scale = 256;
        if (!reference_tiled(a, {}, rounding, out.data()).ok()) return status;
        std::size_t at = 0;
        for (std::int64_t b = 0; b < a.out.shape[0]; ++b)
          for (std::int64_t h = 0; h < a.out.shape[1]; ++h)
            for (std::int64_t r = 0; r < a.out.shape[2]; ++r)
              for (std::int64_t d = 0; d < a.out.shape[3]; ++d)
                store_element(a.out.dtype, a.out.data,
                              b * a.out.stride[0] + h * a.out.stride[1] + r * a.out.stride[2] + d,
                              static_cast<float>(out[at++]));
        return status;
      })),
      "16-bit gate");
}

GateSubject slowed(double factor, std::size_t shapes) {
  GateSubject subject = sound_subject();
  subject.time = [factor, shapes](const BenchOptions&,
                                  const BenchCase& shape) -> Result<std::vector<double>> {
    const auto number =
        static_cast<std::size_t>(std::distance(kRecordedUs.begin(), kRecordedUs.find(shape.name)));
    return samples_around(kRecordedUs.at(shape.name) * (number < shapes ? factor : 1), 5 + number);
  };
  return subject;
}

TEST(GateFault, SlowerByTwelvePercentOnTwoShapes) {
  expect_rejected_by(kPerformance, gates_of(slowed(1.12, 2), quickest_options()), "12.0% slower");
  EXPECT_TRUE(gates_of(slowed(1.12, 1), quickest_options()).passed()) << "one shape is allowed";
  EXPECT_TRUE(gates_of(slowed(1.08, 3), quickest_options()).passed()) << "ten percent are allowed";
}

// The quickest options with the first `rows` of the baseline, its times divided by `divisor`.
GateOptions with_baseline(std::size_t rows, double divisor) {
  GateOptions options = quickest_options();
  Json baseline = Json::parse(options.baseline);
  baseline["rows"].erase(baseline["rows"].begin() + static_cast<std::ptrdiff_t>(rows),
                         baseline["rows"].end());
  for (Json& us : baseline["rows"][0]["samples_us"]) us = us.get<double>() / divisor;
  options.baseline = baseline.dump();
  return options;
}

TEST(GateFault, OneShapeMuchSlower) {
  expect_rejected_by(kPerformance, gates_of(slowed(1.3, 1), quickest_options()),
                     "worst_slowdown is 1.3");
  expect_rejected_by(kPerformance, gates_of(sound_subject(), with_baseline(3, 100)),
                     "9900.0% slower");
  EXPECT_TRUE(gates_of(slowed(1.2, 1), quickest_options()).passed()) << "a fifth on one shape";
}

TEST(GateFault, TheOnlyShapeSlower) {
  expect_rejected_by(kPerformance, gates_of(sound_subject(), with_baseline(1, 1.15)),
                     "15.0% slower");
  const GateReport report = gates_of(sound_subject(), with_baseline(1, 1));
  EXPECT_EQ(report.gates[kPerformance].state, GateState::passed)
      << report.gates[kPerformance].reason;
}

TEST(GateFault, ABaselineThatCannotBeCompared) {
  GateOptions options = quickest_options();
  Json baseline = Json::parse(options.baseline);
  baseline.erase("machine");
  options.baseline = baseline.dump();
  expect_rejected_by(kPerformance, gates_of(slowed(1000, 3), options),
                     "does not name the machine that it was measured on");
  options.baseline_optional = true;
  const GateReport report = gates_of(slowed(1000, 3), options);
  EXPECT_EQ(report.gates[kPerformance].state, GateState::not_measured);
  EXPECT_TRUE(report.passed()) << "it was asked for";
  baseline["rows"] = Json::array();
  options.baseline = baseline.dump();
  EXPECT_EQ(run_gates(options, sound_subject()).status().message(),
            "baseline is one without rows; supported: one row or more.");
}

TEST(Gate, NoisyClockIsNotMeasured) {
  GateSubject subject = sound_subject();
  subject.time = [calls = 0](const BenchOptions&,
                             const BenchCase& shape) mutable -> Result<std::vector<double>> {
    return samples_around(kRecordedUs.at(shape.name) * (++calls % 6 >= 3 ? 1.5 : 1.0), 3);
  };
  expect_rejected_by(kPerformance, gates_of(subject, quickest_options()),
                     "0 of 3 shapes could be measured in this noise.");
  GateOptions options = quickest_options();
  options.baseline_optional = true;
  const GateReport report = gates_of(subject, options);
  EXPECT_EQ(report.gates[kPerformance].state, GateState::not_measured);
  ASSERT_EQ(report.gates[kPerformance].timings.size(), 3U);
  EXPECT_NEAR(report.gates[kPerformance].timings[0].resolution, 1.0 / 3, 0.02);
}

TEST(Gate, OneResolvedShapeIsNotEnough) {
  // Two of three shapes are noisy, the third is slower: one slower shape is allowed, so nothing
  // would be rejected.
  GateSubject subject = sound_subject();
  subject.time = [calls = 0](const BenchOptions&,
                             const BenchCase& shape) mutable -> Result<std::vector<double>> {
    const bool second_series = ++calls > 3;
    const double us = kRecordedUs.at(shape.name);
    return samples_around(shape.name == "long" ? 1.2 * us : us * (second_series ? 1.3 : 1.0), 3);
  };
  GateOptions options = quickest_options();
  options.baseline_optional = true;
  const GateReport report = gates_of(subject, options);
  EXPECT_EQ(report.gates[kPerformance].state, GateState::not_measured);
  EXPECT_EQ(report.gates[kPerformance].reason, "1 of 3 shapes could be measured in this noise.");
}

TEST(GateFault, SlowerBeyondTheNoise) {
  GateSubject subject = sound_subject();
  subject.time = [calls = 0](const BenchOptions&,
                             const BenchCase& shape) mutable -> Result<std::vector<double>> {
    return samples_around(kRecordedUs.at(shape.name) * (++calls > 3 ? 2.3 : 2.0), 3);
  };
  expect_rejected_by(kPerformance, gates_of(subject, quickest_options()), "slower than the");
}

TEST(Gate, BaselineOfAnotherMachineIsNotCompared) {
  GateOptions options = quickest_options();
  Json baseline = Json::parse(options.baseline);
  baseline["machine"] = "another GPU";
  options.baseline = baseline.dump();
  expect_rejected_by(kPerformance, gates_of(sound_subject(), options), "another GPU");
  options.baseline_optional = true;
  const GateReport report = gates_of(slowed(2, 3), options);
  EXPECT_EQ(report.gates[kPerformance].state, GateState::not_measured);
  EXPECT_NE(report.gates[kPerformance].reason.find("another GPU"), std::string::npos);
}

TEST(Gate, BaselineOfAnotherTimingMethodIsRefused) {
  for (const auto& [key, value] :
       {std::pair<const char*, Json>{"launch", "stream"}, {"l2", "cold"}, {"buffers", 4}}) {
    GateOptions options = quickest_options();
    Json baseline = Json::parse(options.baseline);
    baseline[key] = value;
    options.baseline = baseline.dump();
    const Result<GateReport> report = run_gates(options, sound_subject());
    ASSERT_FALSE(report.ok()) << key;
    EXPECT_NE(report.status().message().find("another way of timing"), std::string::npos);
  }
}

TEST(GateFault, CountersBeyondTheirThresholds) {
  GateOptions options = quickest_options();
  options.counters = counters_text(31, 0.001);
  expect_rejected_by(kCounters, gates_of(sound_subject(), options),
                     "long sm90_forward: tensor_active_pct is 31; supported: at least 50");
  options.counters = counters_text(61, 2.5);
  expect_rejected_by(kCounters, gates_of(sound_subject(), options), "bank_conflict_cycles_pct");
  // 18.7% of warps are below their 40%, and 0.115 per wavefront above its limit: neither is
  // enforced.
  options.counters = counters_text(61, 0);
  EXPECT_TRUE(gates_of(sound_subject(), options).passed());
}

TEST(Gate, CountersAreCountedIfNoneAreGiven) {
  GateOptions options = quickest_options();
  options.counters.clear();
  GateSubject subject = sound_subject();
  EXPECT_EQ(gates_of(subject, options).gates[kCounters].reason, "no counters were given.");
  subject.count = [] { return Result<std::string>(counters_text(61, 0)); };
  EXPECT_EQ(gates_of(subject, options).gates[kCounters].state, GateState::passed);
  subject.count = [] { return Result<std::string>(counters_text(31, 0)); };
  expect_rejected_by(kCounters, gates_of(subject, options), "tensor_active_pct");
}

TEST(Gate, CountersThatCannotBeCountedAreNotMeasured) {
  GateOptions options = quickest_options();
  options.counters.clear();
  GateSubject subject = sound_subject();
  subject.count = [] {
    return Result<std::string>(
        R"({"kind": "counters", "rows": [], "not_measured": "only administrators."})");
  };
  const GateResult of_report = gates_of(subject, options).gates[kCounters];
  EXPECT_EQ(of_report.state, GateState::not_measured);
  EXPECT_EQ(of_report.reason, "only administrators.");
  subject.count = [] { return Result<std::string>(Status(ErrorCode::device_error, "broken.")); };
  const GateResult of_status = gates_of(subject, options).gates[kCounters];
  EXPECT_EQ(of_status.state, GateState::not_measured);
  EXPECT_EQ(of_status.reason, "broken.");
}

TEST(Gate, TheCasesHaveEveryKeyTailAndSeveralSeeds) {
  std::map<std::int64_t, int> tails;
  std::map<std::uint64_t, int> seeds;
  for (const Case& c : gate_cases({})) {
    if (c.seqlen_q == 8 && c.batch == 1) ++tails[c.seqlen_kv];
    ++seeds[c.seed];
  }
  for (std::int64_t keys = 1; keys <= 257; ++keys) EXPECT_GE(tails[keys], 3) << keys;
  EXPECT_GT(seeds.size(), 3U);
}

TEST(Gate, TheCasesHaveEverySize) {
  std::set<std::int64_t> dims, heads, batches;
  std::int64_t most_q = 0, most_kv = 0;
  for (const Case& c : gate_cases({})) {
    dims.insert(c.head_dim);
    heads.insert(c.heads_q);
    batches.insert(c.batch);
    most_q = std::max(most_q, c.seqlen_q);
    most_kv = std::max(most_kv, c.seqlen_kv);
  }
  EXPECT_GE(dims.size(), 256U);
  for (std::int64_t dim = 1; dim <= 256; ++dim) EXPECT_TRUE(dims.contains(dim)) << dim;
  for (std::int64_t count = 1; count <= 32; ++count) {
    EXPECT_TRUE(heads.contains(count)) << count;
    EXPECT_TRUE(batches.contains(count)) << count;
  }
  EXPECT_GE(most_q, 8192);
  EXPECT_GE(most_kv, 32768);
}

TEST(Gate, TheSizesAreDrawnAnewAndCanBeRepeated) {
  const auto draw = [](std::optional<std::uint64_t> seed) {
    GateOptions options = quickest_options();
    options.draw_seed = seed;
    return gates_of(sound_subject(), options).draw_seed;
  };
  EXPECT_EQ(draw(7), 7U);
  const std::set<std::uint64_t> drawn = {draw({}), draw({}), draw({}), draw({})};
  EXPECT_GT(drawn.size(), 1U);
  std::set<std::string> names;
  for (const std::uint64_t seed : {1, 1, 2})
    for (const Case& c : size_cases(seed)) names.insert(c.name());
  EXPECT_EQ(names.size(), 2 * size_cases(1).size());
}

// Each of these kernels is right for every problem of the case tables, whose sizes are small.
TEST(GateFault, WrongForSomeSizesOnly) {
  using Fault = std::function<bool(const Arguments&)>;
  const std::map<std::string, Fault> faults = {
      {"none", [](const Arguments&) { return false; }},
      {"keys", [](const Arguments& a) { return a.k.shape[2] > 520; }},
      {"queries", [](const Arguments& a) { return a.q.shape[2] > 2048; }},
      {"heads", [](const Arguments& a) { return a.q.shape[1] == 11; }},
      {"head_dim", [](const Arguments& a) { return a.q.shape[3] == 200; }},
      {"batch", [](const Arguments& a) { return a.q.shape[0] >= 9 || a.sequences >= 9; }}};
  // Only the cases around a fault, so that the test takes seconds.
  const auto is_near = [](const Case& c, const std::string& name) {
    return (name == "keys" && c.seqlen_kv > 400) || (name == "queries" && c.seqlen_q > 1500) ||
           (name == "heads" && c.heads_q == 11) || (name == "head_dim" && c.head_dim == 200) ||
           (name == "batch" && c.batch >= 8 && c.batch <= 10);
  };
  for (const auto& [name, fault] : faults) {
    std::vector<Case> near = size_cases(3);
    std::erase_if(near, [&](const Case& c) {
      const bool there =
          name == "none" ? std::any_of(faults.begin(), faults.end(),
                                       [&](const auto& other) { return is_near(c, other.first); })
                         : is_near(c, name);
      return !there || c.seqlen_kv * c.seqlen_q >= 1 << 20;
    });
    ASSERT_FALSE(near.empty()) << name;
    GateSubject subject =
        with_run([fault](const Kernel& kernel, const Arguments& a, Workspace w, Stream s) {
          const Status status = kernel.run(a, w, s);
          if (fault(a)) std::memset(a.out.data, 0x3c, out_bytes(a) / 2);
          return status;
        });
    const auto report = check_cases({}, near, runner_of({}, subject.make_kernel, OnStream::own));
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_EQ(report->failures.empty(), name == "none") << name;
  }
}

TEST(Thresholds, EachHasAReasonAndTheRequiredOnesExist) {
  const auto list = gate_thresholds();
  ASSERT_TRUE(list.ok()) << list.status().message();
  std::map<std::string, int> named;
  for (const Threshold& t : *list) ++named[t.name];
  for (const char* first : {"tensor_active_pct", "dram_pct", "warps_active_pct", "occupancy_pct",
                            "bank_conflicts_per_wavefront", "memory_efficiency_pct"})
    EXPECT_GE(named[first], 1) << first;
}

TEST(Thresholds, ErrorsAreReported) {
  const auto says = [](const char* json) { return gate_thresholds(json).status().message(); };
  EXPECT_NE(says("{").find("thresholds is"), std::string::npos) << says("{");
  EXPECT_NE(says(R"({"kind":"bench"})").find("supported: kind \"thresholds\""), std::string::npos);
  EXPECT_NE(says(R"({"kind":"thresholds","thresholds":[{"gate":"speed","name":"x","at_most":1,
                     "verdict":"v","reason":"r"}]})")
                .find("gate \"speed\""),
            std::string::npos);
  EXPECT_NE(says(R"({"kind":"thresholds","thresholds":[{"gate":"compile","name":"x",
                     "verdict":"v","reason":"r"}]})")
                .find("one of at_least and at_most"),
            std::string::npos);
  EXPECT_NE(says(R"({"kind":"thresholds","thresholds":[{"gate":"compile","name":"x","at_most":1,
                     "verdict":"v","reason":""}]})")
                .find("a verdict and a reason"),
            std::string::npos);
}

TEST(Gate, BadOptionsAreRefused) {
  GateOptions options;
  options.seeds = 1;
  EXPECT_EQ(run_gates(options, sound_subject()).status().message(),
            "seeds is 1; supported: 2 to 100.");
  options = quickest_options();
  options.baseline = "{}";
  EXPECT_EQ(run_gates(options, sound_subject()).status().code(), ErrorCode::invalid_argument);
}

TEST(Stats, IntervalContainsTheRatioAndResolvesTwelvePercent) {
  const std::vector<double> a = samples_around(100, 1), b = samples_around(112, 2);
  const Interval interval = ratio_interval(b, a);
  EXPECT_GT(interval.low, 1.10);
  EXPECT_LT(interval.high, 1.14);
  const Interval again = ratio_interval(b, a);
  EXPECT_EQ(interval.low, again.low);
  const Interval same = ratio_interval(a, samples_around(100, 4));
  EXPECT_LE(same.low, 1.0);
  EXPECT_GE(same.high, 1.0);
}

}  // namespace
}  // namespace octavo::evidence
