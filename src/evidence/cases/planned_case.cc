// SPDX-License-Identifier: Apache-2.0
#include "evidence/cases/planned_case.h"

#include <fmt/format.h>

#include "attention/validate.h"
#include "base/error.h"
#include "runtime/plan/gpu_plan.h"

namespace octavo::evidence {
namespace {

DType out_type_of(DType input) { return is_8bit(input) ? DType::f16 : input; }

Case case_of(const PlannedCaseOptions& options, const BenchCase& shape) {
  Case c;
  set_shape(c, shape);
  c.input = options.dtype;
  c.out = out_type_of(options.dtype);
  c.options = options.attention;
  c.lse = false;
  c.sampled_rows = 8;
  c.seed = options.seed;
  return c;
}

}  // namespace

std::vector<BenchCase> named_cases(std::vector<BenchCase> cases) {
  if (cases.empty())
    for (const Preset& p : presets())
      cases.push_back({std::string(p.name), p.batch, p.heads, p.length, p.head_dim});
  for (BenchCase& c : cases)
    if (c.name.empty()) c.name = fmt::format("{},{},{},{}", c.batch, c.heads, c.length, c.head_dim);
  for (BenchCase& c : cases) {
    if (c.heads_kv) c.name += fmt::format(" kv-heads={}", *c.heads_kv);
    if (c.length_kv) c.name += fmt::format(" kv-length={}", *c.length_kv);
    if (c.head_dim_v) c.name += fmt::format(" head-dim-v={}", *c.head_dim_v);
  }
  return cases;
}

Status validate_cases(const PlannedCaseOptions& options, const std::vector<BenchCase>& cases) {
  if (!options.config.empty() && options.device.kind != Device::Kind::cuda)
    return invalid(
        "config", fmt::format("\"{}\"", options.config),
        fmt::format("no configuration on {}, which chooses its own", name(options.device)));
  for (const BenchCase& shape : cases) {
    for (const auto& [what, n] : {std::pair{"batch", shape.batch},
                                  {"heads", shape.heads},
                                  {"length", shape.length},
                                  {"head_dim", shape.head_dim},
                                  {"heads_kv", shape.heads_kv.value_or(1)},
                                  {"length_kv", shape.length_kv.value_or(1)},
                                  {"head_dim_v", shape.head_dim_v.value_or(1)}})
      if (n < 1) return invalid(what, fmt::format("{}", n), "1 or more");
    OCTAVO_RETURN_IF_ERROR(validate(problem_of(options.dtype, options.attention, shape)));
  }
  return {};
}

void set_shape(Case& c, const BenchCase& shape) {
  c.batch = shape.batch;
  c.heads_q = shape.heads;
  c.heads_kv = shape.heads_kv.value_or(shape.heads);
  c.seqlen_q = shape.length;
  c.seqlen_kv = shape.length_kv.value_or(shape.length);
  c.head_dim = shape.head_dim;
  c.head_dim_v = shape.head_dim_v.value_or(0);
}

Problem problem_of(DType dtype, const Options& attention, const BenchCase& shape) {
  Problem problem;
  problem.batch = shape.batch;
  problem.heads_q = shape.heads;
  problem.heads_kv = shape.heads_kv.value_or(shape.heads);
  problem.seqlen_q = shape.length;
  problem.seqlen_kv = shape.length_kv.value_or(shape.length);
  problem.head_dim = shape.head_dim;
  problem.head_dim_v = shape.head_dim_v.value_or(shape.head_dim);
  problem.q = problem.k = problem.v = dtype;
  problem.out = out_type_of(dtype);
  problem.options = attention;
  return problem;
}

double flop_of(const BenchCase& shape, Causal causal) {
  return 2.0 * static_cast<double>(shape.batch * shape.heads) * static_cast<double>(shape.length) *
         static_cast<double>(shape.length_kv.value_or(shape.length)) *
         static_cast<double>(shape.head_dim + shape.head_dim_v.value_or(shape.head_dim)) *
         (causal == Causal::none ? 1.0 : 0.5);
}

PlannedCase::PlannedCase(const PlannedCaseOptions& options, const BenchCase& shape)
    : options_(options), case_(case_of(options, shape)) {}

Status PlannedCase::prepare() {
  Result<Inputs> inputs = make_inputs(case_);
  if (!inputs.ok()) return inputs.status();
  inputs_ = std::move(inputs).value();
  given_ = inputs_.given;
  Options options = case_.options;
  if (options_.prequantized) {
    Result<QuantizedCall> prequantized = quantize_ahead(given_, options, options_.prequantized_v);
    if (!prequantized.ok()) return prequantized.status();
    prequantized_ = std::move(prequantized).value();
    given_ = prequantized_.arguments;
    options.quantization = {};  // already applied
  }
  const Result<Problem> problem = problem_of(given_, options);
  if (!problem.ok()) return problem.status();
  OCTAVO_RETURN_IF_ERROR(make_plan(*problem));
  OCTAVO_RETURN_IF_ERROR(make_workspace());
  if (on_cpu()) return {};
  for (int copy = 0; copy < options_.copies; ++copy) {
    Result<StagedArguments> staged =
        StagedArguments::make(given_, *problem, options_.device, kGuardBytes);
    if (!staged.ok()) return staged.status();
    staged_.push_back(std::move(staged).value());
  }
  return {};
}

Status PlannedCase::run(Stream stream, int copy) const {
  return plan_->run(on_cpu() ? given_ : staged_[static_cast<std::size_t>(copy)].on_device(),
                    workspace_, stream);
}

Status PlannedCase::fetch() const {
  if (on_cpu()) return {};
  OCTAVO_RETURN_IF_ERROR(synchronize(options_.device));
  return staged_[0].fetch();
}

Status PlannedCase::make_plan(const Problem& problem) {
  Result<std::shared_ptr<const Plan::Impl>> made =
      options_.config.empty() ? octavo::make_plan(problem, options_.device)
                              : make_gpu_plan(problem, options_.device, options_.config);
  if (!made.ok()) return made.status();
  impl_ = *std::move(made);
  plan_.emplace(impl_);
  return {};
}

Status PlannedCase::make_workspace() {
  workspace_.bytes = plan_->workspace_bytes();
  if (!on_cpu()) {
    Result<Buffer> memory = Buffer::make(options_.device, workspace_.bytes);
    if (!memory.ok()) return memory.status();
    device_memory_ = *memory;
    workspace_.data = device_memory_.data();
    return {};
  }
  constexpr std::size_t kAlignment = 64;
  std::size_t room = workspace_.bytes + kAlignment;
  memory_.resize(room);
  workspace_.data = memory_.data();
  std::align(kAlignment, workspace_.bytes, workspace_.data, room);
  return {};
}

}  // namespace octavo::evidence
