// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/cpu_plan.h"

#include <algorithm>
#include <cmath>

#include "attention/operand_scales.h"
#include "attention/validate.h"
#include "base/error.h"
#include "cpu/attention.h"

namespace octavo {
namespace {

// Checks scales in host memory before anything is written: a scale that is not a positive finite
// number would silently turn a whole head into NaN or zero. Scales of tokens and pages outside
// every sequence are never used and are not checked.
class ScaleCheck {
 public:
  ScaleCheck(std::string_view what, const Arguments& a, const ConstTensor& tensor,
             const Scales& scales, std::int64_t max_len)
      : what_(what),
        shape_(scale_shape(a, tensor, scales, max_len)),
        found_(operand_scales(a, tensor, scales, max_len)),
        per_head_(scales_per_head(shape_, scales.granularity, scales.block_rows)) {}

  // Checks scales [begin, begin + count) of every head of one batch entry.
  Status heads(std::int64_t batch, std::int64_t begin, std::int64_t count) const {
    for (std::int64_t h = 0; h < shape_[1]; ++h)
      for (std::int64_t i = begin; i < begin + count; ++i)
        OCTAVO_RETURN_IF_ERROR(one(batch * found_.index.stride[0] + h * found_.index.stride[1] +
                                   i * found_.index.stride[2]));
    return {};
  }
  Status all() const {
    for (std::int64_t b = 0; b < shape_[0]; ++b) OCTAVO_RETURN_IF_ERROR(heads(b, 0, per_head_));
    return {};
  }
  // Checks the scales of the keys of a paged cache.
  Status pages(const Arguments& a) const {
    const bool by_row = found_.index.granularity == Granularity::row;
    const std::int64_t step = by_row ? 1 : shape_[2];
    for (std::int64_t b = 0; b < sequence_count(a); ++b)
      for (std::int64_t h = 0; h < shape_[1]; ++h)
        for (std::int64_t key = 0; key < sequence(a, b).seqlen_kv; key += step)
          OCTAVO_RETURN_IF_ERROR(one(found_.place({b, 0, 0, h, PageTable(a)}, key, 0)));
    return {};
  }
  Status one(std::int64_t at) const {
    const float scale = found_.data[at];
    if (std::isfinite(scale) && scale > 0) return {};
    return invalid(fmt::format("{}.data[{}]", what_, at), fmt::format("{}", scale),
                   "positive finite numbers");
  }

 private:
  std::string_view what_;
  std::array<std::int64_t, 4> shape_;
  OperandScales found_;
  std::int64_t per_head_;
};

Status check_scale_values(std::string_view what, const Arguments& a, const ConstTensor& tensor,
                          const Scales& scales, std::int64_t max_len, bool keys) {
  if (!is_8bit(tensor.dtype)) return {};
  const ScaleCheck check(what, a, tensor, scales, max_len);
  if (scales.granularity == Granularity::tensor) return check.one(0);
  if (is_paged(a) && scales.granularity != Granularity::head) return check.pages(a);
  if (!is_varlen(a) || scales.granularity != Granularity::row) return check.all();
  for (std::int64_t b = 0; b < a.sequences; ++b) {
    const Sequence at = sequence(a, b);
    OCTAVO_RETURN_IF_ERROR(keys ? check.heads(0, at.kv_begin, at.seqlen_kv)
                                : check.heads(0, at.q_begin, at.seqlen_q));
  }
  return {};
}

class CpuPlan final : public Plan::Impl {
 public:
  using Plan::Impl::Impl;

  Explanation explain() const override {
    Explanation e;
    e.device = name(device);
    e.kernel = "cpu_forward";
    e.config = cpu::describe_config(problem, threads_);
    e.reason = "the CPU backend has one kernel for every problem";
    if (problem.options.precision == Precision::fp8_fast)
      e.reason += "; exp is exact here, so fp8_fast gives what fp8 gives";
    e.workspace_bytes = workspace_bytes(problem, nullptr);
    return e;
  }

  std::size_t workspace_bytes(const Problem& run_problem,
                              const Arguments* /*arguments*/) const override {
    return cpu::workspace_bytes(run_problem, threads_);
  }

  std::size_t full_workspace_bytes(const Problem& run_problem,
                                   const Arguments* /*arguments*/) const override {
    return cpu::workspace_bytes(run_problem, std::max(threads_, cpu::thread_count()));
  }

  Status run(const Problem& run_problem, const Arguments& a, Workspace workspace,
             Stream /*stream*/) const override {
    if (is_paged(a)) OCTAVO_RETURN_IF_ERROR(validate_lengths(a));  // before scales are looked up
    OCTAVO_RETURN_IF_ERROR(
        check_scale_values("q_scales", a, a.q, a.q_scales, run_problem.seqlen_q, false));
    OCTAVO_RETURN_IF_ERROR(
        check_scale_values("k_scales", a, a.k, a.k_scales, run_problem.seqlen_kv, true));
    OCTAVO_RETURN_IF_ERROR(
        check_scale_values("v_scales", a, v_by_rows(a), a.v_scales, run_problem.seqlen_kv, true));
    OCTAVO_RETURN_IF_ERROR(
        check_scale_values("out_scales", a, a.out, a.out_scales, run_problem.seqlen_q, false));
    return cpu::attention(run_problem, a, workspace);
  }

 private:
  // The workspace is sized for this many threads. The thread count may change between calls, but
  // the workspace size must not.
  const int threads_ = cpu::thread_count();
};

}  // namespace

std::shared_ptr<const Plan::Impl> make_cpu_plan(const Problem& problem, Device device) {
  return std::make_shared<CpuPlan>(problem, device);
}

}  // namespace octavo
