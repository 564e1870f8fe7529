// SPDX-License-Identifier: Apache-2.0
// Times two kernels in turn on a GPU, in a child process.
#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/error.h"
#include "evidence/bench/stats.h"
#include "evidence/cases/planned_case.h"
#include "evidence/cases/runner.h"
#include "evidence/gates/gpu_suite.h"
#include "evidence/ladder/ladder_cases.h"
#include "evidence/oracle/judge.h"
#include "evolve/gates/patch.h"
#include "evolve/isolation/isolate.h"
#include "evolve/measure.h"
#include "evolve/random.h"
#include "files/bounded_json.h"
#include "gpu/driver/clock_watch.h"
#include "gpu/driver/context.h"
#include "gpu/driver/timing.h"

namespace octavo::evolve {
namespace {

using evidence::PlannedCase;

// One kernel of a pair on one shape, with its own inputs and outputs.
class TimedKernel {
 public:
  TimedKernel(const Task& task, const BenchCase& shape, const Candidate& candidate,
              std::uint64_t seed)
      : task_(task), shape_(shape), candidate_(candidate), case_(options(seed), shape) {}

  Status prepare() {
    const Result<Patched> patched = apply_patch(candidate_.patch);
    if (!patched.ok()) return patched.status();
    OCTAVO_RETURN_IF_ERROR(use_source_overlay(patched->overlay()));
    OCTAVO_RETURN_IF_ERROR(case_.prepare());
    if (is_ladder()) OCTAVO_RETURN_IF_ERROR(prepare_ladder());
    evidence::poison_outputs(case_.inputs());
    // The first run loads the kernel, while its sources are in place.
    OCTAVO_RETURN_IF_ERROR(run(nullptr));
    OCTAVO_RETURN_IF_ERROR(synchronize(task_.device));
    return choose_timing();
  }

  // The mean time of a few calls.
  Result<double> time() {
    const Result<GpuTimes> times =
        gpu_times(task_.device, timing_, [this](Stream stream) { return run(stream); });
    if (!times.ok()) return times.status();
    timing_.warmup_ms = 0;  // the kernels of a round follow each other
    return times->samples_us.at(0);
  }

  // Judges what the last timed call has written.
  Status verify(const evidence::CheckOracle& oracle) {
    OCTAVO_RETURN_IF_ERROR(case_.fetch());
    const Result<evidence::Truth> truth =
        evidence::make_truth(case_.of(), case_.inputs(), {oracle.oracle, true});
    if (!truth.ok()) return truth.status();
    const evidence::Verdict verdict =
        evidence::judge(case_.of(), case_.inputs(), *truth, Device::Kind::cuda);
    if (verdict.failures.empty()) return {};
    return {ErrorCode::device_error,
            fmt::format("Wrong after it was timed: {}: {}", shape_.name, verdict.failures[0])};
  }

 private:
  bool is_ladder() const { return candidate_.kernel == "ladder"; }

  evidence::PlannedCaseOptions options(std::uint64_t seed) const {
    evidence::PlannedCaseOptions made;
    made.device = task_.device;
    made.dtype = task_.dtype;
    made.attention = task_.attention;
    made.seed = seed;
    if (!is_ladder()) made.config = candidate_.config;
    return made;
  }

  Status prepare_ladder() {
    const Result<KernelConfig> config = parse_config("ladder", candidate_.config);
    if (!config.ok()) return config.status();
    const Result<Problem> problem = problem_of(case_.on_device(), task_.attention);
    if (!problem.ok()) return problem.status();
    Result<evidence::Kernel> kernel =
        evidence::kernel_of_ladder(std::get<LadderConfig>(*config))(*problem, task_.device);
    if (!kernel.ok()) return kernel.status();
    ladder_ = *std::move(kernel);
    return {};
  }

  Status run(Stream stream) const {
    return ladder_ ? ladder_->run(case_.on_device(), {}, stream) : case_.run(stream);
  }

  Status choose_timing() {
    constexpr double kSampleUs = 1500;
    timing_.calls = 1;
    timing_.samples = 1;
    timing_.warmup_ms = 0;
    const Result<GpuTimes> once =
        gpu_times(task_.device, timing_, [this](Stream stream) { return run(stream); });
    if (!once.ok()) return once.status();
    timing_.calls = static_cast<int>(std::clamp(kSampleUs / once->samples_us[0], 1.0, 20.0));
    timing_.warmup_ms = 20;
    return {};
  }

  const Task& task_;
  const BenchCase& shape_;
  const Candidate& candidate_;
  PlannedCase case_;
  std::optional<evidence::Kernel> ladder_;
  GpuTiming timing_;
};

// Base, candidate, candidate, base, and so on; the seed says which is first.
Result<Rounds> timed_in_turn(const Task& task, const BenchCase& shape,
                             const MeasureRequest& request, const evidence::CheckOracle& oracle) {
  TimedKernel base(task, shape, *request.base, request.seed);
  TimedKernel candidate(task, shape, *request.candidate, request.seed);
  OCTAVO_RETURN_IF_ERROR(base.prepare());
  OCTAVO_RETURN_IF_ERROR(candidate.prepare());
  Rounds rounds;
  const bool base_first = Random(request.seed).below(2) == 0;
  ClockWatch watch(task.device);
  // The first round is not kept: caches and clocks settle.
  for (int round = -1; round < request.rounds; ++round) {
    const bool base_now = base_first == (round % 2 == 0);
    for (const bool is_base : {base_now, !base_now}) {
      const Result<double> us = is_base ? base.time() : candidate.time();
      if (!us.ok()) return us.status();
      if (round >= 0) (is_base ? rounds.base_us : rounds.candidate_us).push_back(*us);
    }
  }
  rounds.clock_mhz = watch.finish().clock_mhz.value_or(0);
  OCTAVO_RETURN_IF_ERROR(candidate.verify(oracle));
  return rounds;
}

// In the child: the block as JSON, or the reason why there is none.
std::string measured(const Task& task, const MeasureRequest& request) {
  if (!request.directory.empty())
    (void)::setenv("OCTAVO_CACHE_DIR", (request.directory + "/cubins").c_str(), 1);
  if (const Result<const Gpu*> gpu = open_gpu(task.device.index); !gpu.ok())
    return nlohmann::json{{"no_gpu", gpu.status().message()}}.dump();
  const evidence::CheckOracle oracle = evidence::oracle_for(task.device);
  Block block;
  for (const BenchCase& shape : task.shapes) {
    Result<Rounds> rounds = timed_in_turn(task, shape, request, oracle);
    if (!rounds.ok()) return nlohmann::json{{"error", rounds.status().message()}}.dump();
    block.push_back(*std::move(rounds));
  }
  return nlohmann::json{{"blocks", to_json(std::vector<Block>{block})}}.dump();
}

class GpuMeasurer final : public Measurer {
 public:
  Result<Block> measure(const Task& task, const MeasureRequest& request) override {
    Limits limits;
    limits.seconds = request.time_limit_s;
    limits.directory = request.directory;
    limits.gpu = true;
    limits.isolation = task.gpu_isolation;
    const ChildResult child = run_isolated(limits, [&] { return measured(task, request); });
    if (!child.finished())
      return Status(ErrorCode::device_error, fmt::format("While it was timed: {}", child.reason));
    const nlohmann::json answer = parse_bounded(child.output, kReportNesting);
    if (answer.is_object() && answer.contains("error") && answer["error"].is_string())
      return Status(ErrorCode::device_error, answer["error"].get<std::string>());
    if (answer.is_object() && answer.contains("no_gpu") && answer["no_gpu"].is_string())
      return Status(ErrorCode::unsupported, answer["no_gpu"].get<std::string>());
    std::vector<Block> blocks = blocks_from_json(
        answer.is_object() && answer.contains("blocks") ? answer["blocks"] : nlohmann::json());
    if (blocks.size() != 1)
      return Status(ErrorCode::device_error, "The child that times the kernels gave no answer.");
    return std::move(blocks[0]);
  }
  double floor_us(const Task& task, const BenchCase& shape) override {
    return tensor_floor_us(task, shape);
  }
};

}  // namespace

std::unique_ptr<Measurer> gpu_measurer() { return std::make_unique<GpuMeasurer>(); }

double tensor_floor_us(const Task& task, const BenchCase& shape) {
  // 132 SMs, 4096 operations per clock and SM in 16 bits, 1.98 GHz; later chips have up to two and
  // a half times as much.
  constexpr double kHopper = 132 * 4096 * 1.98e9;
  const bool is_8bit = task.attention.precision != Precision::native &&
                       task.attention.precision != Precision::fp16 &&
                       task.attention.precision != Precision::bf16;
  const double peak = kHopper * (task.kernel == "sm90_forward" ? 1 : 2.5) * (is_8bit ? 2 : 1);
  return evidence::flop_of(shape, task.attention.causal) / peak * 1e6;
}

}  // namespace octavo::evolve
