#include "runtime/cpu_plan.h"

#include <cmath>

#include "attention/error.h"
#include "attention/operand_scales.h"
#include "cpu/attention.h"

namespace octavo {
namespace {

// Scales in host memory can be read before anything is written. A scale that is not a positive
// finite number would turn a whole head into NaN or zero without a word.
Status check_scale_values(std::string_view what, const Arguments& a, const ConstTensor& tensor,
                          const Scales& scales, std::int64_t max_len) {
  if (!is_8bit(tensor.dtype)) return {};
  const auto shape = scale_shape(a, tensor, scales, max_len);
  const ScaleIndex index = scale_index(scales, shape);
  const bool whole = scales.granularity == Granularity::tensor;
  const std::int64_t per_head = scales_per_head(shape, scales.granularity, scales.block_rows);
  for (std::int64_t b = 0; b < (whole ? 1 : shape[0]); ++b)
    for (std::int64_t h = 0; h < (whole ? 1 : shape[1]); ++h)
      for (std::int64_t i = 0; i < (whole ? 1 : per_head); ++i) {
        const std::int64_t at =
            whole ? 0 : b * index.stride[0] + h * index.stride[1] + i * index.stride[2];
        const float scale = scales.data[at];
        if (!std::isfinite(scale) || scale <= 0)
          return invalid(fmt::format("{}.data[{}]", what, at), fmt::format("{}", scale),
                         "positive finite numbers");
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
    e.config = cpu::describe_config(problem);
    e.reason = "the CPU backend has one kernel, which serves every problem";
    if (problem.options.precision == Precision::fp8_fast)
      e.reason += "; exp is exact here, so fp8_fast gives what fp8 gives";
    e.workspace_bytes = workspace_bytes(problem);
    return e;
  }

  std::size_t workspace_bytes(const Problem& posed) const override {
    return cpu::workspace_bytes(posed, cpu::thread_count());
  }

  Status run(const Problem& posed, const Arguments& a, Workspace workspace,
             Stream /*stream*/) const override {
    OCTAVO_RETURN_IF_ERROR(check_scale_values("q_scales", a, a.q, a.q_scales, posed.len_q));
    OCTAVO_RETURN_IF_ERROR(check_scale_values("k_scales", a, a.k, a.k_scales, posed.len_kv));
    OCTAVO_RETURN_IF_ERROR(check_scale_values("v_scales", a, a.v, a.v_scales, posed.len_kv));
    return cpu::attention(posed, a, workspace);
  }
};

}  // namespace

std::shared_ptr<const Plan::Impl> make_cpu_plan(const Problem& problem, Device device) {
  return std::make_shared<CpuPlan>(problem, device);
}

}  // namespace octavo
