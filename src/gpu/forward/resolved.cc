// SPDX-License-Identifier: Apache-2.0
#include "gpu/forward/resolved.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "numeric/formats.h"

namespace octavo {

bool is_mixed(const Problem& p) {
  const bool qk_8bit = p.q == DType::e4m3 || p.q == DType::e5m2 || p.q == DType::int8;
  return qk_8bit && p.k == p.q && (p.v == DType::f16 || p.v == DType::bf16);
}

bool is_fp8_of_both_kinds(const Problem& p) {
  return is_fp8(p.q) && p.k == p.q && is_fp8(p.v) && p.v != p.q;
}

namespace {

// Checks that the quantizers support the quantization options.
Status quantizers_serve(const Resolved& resolved) {
  const Problem& p = resolved.run_problem;
  const OperandFormats& formats = resolved.formats;
  if (!formats.q.rounded && !formats.k.rounded && !formats.v.rounded) return {};
  const Quantization& z = p.options.quantization;
  if (formats.v.rounded && p.v_layout == VLayout::transposed)
    return unsupported("v_layout", fmt::format("transposed for {}", describe(p)),
                       "rows with a 16-bit q on a GPU");
  if (z.smooth_k && p.lse)  // LSE would need the mean key
    return unsupported("smooth_k", "on with lse", "off with lse on a GPU");
  for (const OperandFormat* format : {&formats.q, &formats.k, &formats.v})
    if (format->scales_of_ours() && z.rule != ScaleRule::amax)
      return unsupported("quantization.rule", name(z.rule), "amax on a GPU");
  for (const OperandFormat* format : {&formats.q, &formats.k})
    if (format->scales_of_ours() && format->granularity == Granularity::channel)
      return unsupported("quantization.qk", "channel", "tensor, head, block, row on a GPU");
  const Granularity v = formats.v.granularity;
  if (formats.v.scales_of_ours() && (v == Granularity::row || v == Granularity::block))
    return unsupported("quantization.v", name(v), "tensor, head, channel on a GPU");
  if (p.batch * p.heads_kv > INT32_MAX / (p.seqlen_kv + 1) ||
      p.batch * p.heads_q > INT32_MAX / (p.seqlen_q + 1))
    return unsupported("problem", describe(p), "at most 2^31 rows that a GPU quantizes");
  return {};
}

// The problem of the forward kernel, after the quantizers.
Problem kernel_problem_of(const Problem& problem, const OperandFormats& formats) {
  Problem p = problem;
  const auto apply = [](const OperandFormat& format, DType& dtype, Granularity& scales) {
    dtype = format.rounded.value_or(dtype);
    if (format.scales_of_ours()) scales = format.granularity;
  };
  apply(formats.q, p.q, p.q_scales);
  apply(formats.k, p.k, p.k_scales);
  apply(formats.v, p.v, p.v_scales);
  if (formats.q.scales_of_ours()) p.q_max_quantized = formats.q.max_quantized;
  if (formats.k.scales_of_ours()) p.k_max_quantized = formats.k.max_quantized;
  if (formats.k.scales_of_ours()) p.k_block_rows = problem.options.quantization.block_rows;
  p.options.precision = Precision::native;
  p.options.quantization = {};
  return p;
}

// Checks that some GPU kernel runs the problem, whatever the alignment of its tensors.
Status gpu_serves(const Resolved& resolved) {
  OCTAVO_RETURN_IF_ERROR(quantizers_serve(resolved));
  const Problem& p = resolved.kernel_problem;
  if (p.k != p.q || (p.v != p.q && !is_mixed(p) && !is_fp8_of_both_kinds(p)))
    return unsupported("dtypes of q, k, v",
                       fmt::format("{}, {}, {}", name(p.q), name(p.k), name(p.v)),
                       "one dtype for all three on a GPU, or an f16 or bf16 q with 8-bit k and v; "
                       "on sm_90 also e4m3, e5m2 or int8 q and k with an f16 or bf16 v, or one FP8 "
                       "dtype for q and k and the other for v");
  if (p.q == DType::f32) return unsupported("q dtype", "f32", "16- and 8-bit dtypes on a GPU");
  const OperandFormats& formats = resolved.formats;
  const bool as_given = !formats.q.rounded && !formats.k.rounded && !formats.v.rounded;
  constexpr std::int64_t kMostColumns = 512, kAlwaysServed = 256;
  for (const auto& [what, columns] :
       {std::pair{"head_dim", p.head_dim}, {"head_dim_v", p.head_dim_v}}) {
    if (columns <= kAlwaysServed) continue;
    if (size_bytes(p.q) != 2 || !as_given)
      return unsupported(what, fmt::format("{}", columns),
                         "1 to 256 on a GPU; up to 512 with f16 or bf16 q, k and v and precision "
                         "native");
    if (p.block_mask != 0)
      return unsupported(what, fmt::format("{}", columns), "1 to 256 with a block mask on a GPU");
    if (columns > kMostColumns)
      return unsupported(what, fmt::format("{}", columns), "1 to 512 on a GPU");
  }
  if (p.head_dim_v != p.head_dim && (size_bytes(p.q) != 2 || !as_given))
    return unsupported("head_dim_v", fmt::format("{}", p.head_dim_v),
                       fmt::format("head_dim, here {}, on a GPU; others with f16 or bf16 q, k and "
                                   "v and precision native",
                                   p.head_dim));
  if (is_8bit(p.q)) {
    for (const auto& [what, granularity] :
         {std::pair{"q_scales", p.q_scales}, {"k_scales", p.k_scales}})
      if (granularity == Granularity::channel)
        return unsupported(what, "channel", "tensor, head, block, row on a GPU");
    if (is_8bit(p.v) && (p.v_scales == Granularity::row || p.v_scales == Granularity::block))
      return unsupported("v_scales", name(p.v_scales), "tensor, head, channel on a GPU");
  }
  constexpr std::int64_t kMostRows = std::int64_t{1}
                                     << 30;  // sums of rows and tiles stay in 32 bits
  if (p.seqlen_q > kMostRows || p.seqlen_kv > kMostRows)
    return unsupported("sequence length", fmt::format("{}", std::max(p.seqlen_q, p.seqlen_kv)),
                       "up to 2^30 on a GPU");
  if (p.batch * p.heads_q >
      INT32_MAX / div_up<std::int64_t>(std::max<std::int64_t>(p.seqlen_q, 1), 16))
    return unsupported("problem", describe(p), "at most 2^31 tiles of 16 rows on a GPU");
  return {};
}

}  // namespace

Result<Resolved> resolve(const Problem& run_problem, const Arguments* arguments, VLayout layout,
                         bool any_columns) {
  Resolved resolved;
  resolved.run_problem = run_problem;
  if (run_problem.paged) {  // the decode kernel reads the cache as it is
    resolved.kernel_problem = run_problem;
    return resolved;
  }
  resolved.formats = conversion_formats(run_problem);
  resolved.kernel_problem = kernel_problem_of(run_problem, resolved.formats);
  // The sizes of a problem that is not served may overflow below.
  OCTAVO_RETURN_IF_ERROR(gpu_serves(resolved));
  resolved.conversions =
      conversions_of(run_problem, resolved.formats, arguments, layout, any_columns);
  const Conversions& x = resolved.conversions;
  if (x.v.transposed) resolved.kernel_problem.v_layout = VLayout::transposed;
  std::int64_t end = 0;
  const std::array operands = {&x.q, &x.k, &x.v};
  for (std::size_t i = 0; i < operands.size(); ++i) {
    resolved.offsets[i] = operand_offsets(*operands[i], run_problem.varlen, end);
    end = resolved.offsets[i].end;
  }
  resolved.workspace_bytes = static_cast<std::size_t>(end);
  return resolved;
}

}  // namespace octavo
