// SPDX-License-Identifier: Apache-2.0
// The pre-pass of the library's quantization: one task per (sequence, head), each of which sums its
// rows in order, so that the result does not depend on the threads.
#include "cpu/prepare.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "attention/sequence.h"
#include "cpu/thread_pool.h"
#include "numeric/quantize.h"
#include "numeric/scale.h"

namespace octavo::cpu {
namespace {

constexpr std::uint32_t kInfinityBits = 0x7F800000;

// Smoothing and rotation apply only if the library quantizes. Otherwise they would change nothing
// but rounding.
OperandFormats formats_in_use(const Problem& problem) {
  OperandFormats formats = operand_formats(problem);
  const bool rotate = formats.q.scales_of_ours() || formats.k.scales_of_ours();
  formats.q.hadamard &= rotate;
  formats.k.hadamard &= rotate;
  formats.k.smooth &= formats.k.scales_of_ours();
  return formats;
}

std::int64_t own_scales_per_head(const Problem& p, const OperandFormat& format, std::int64_t rows,
                                 std::int64_t columns) {
  if (!format.scales_of_ours()) return 0;
  return scales_per_head({p.batch, 1, rows, columns}, format.granularity,
                         p.options.quantization.block_rows);
}

// One operand whose scales are being computed. `storage` receives them, one set for each (sequence,
// head).
struct Preparation {
  const Kernels& kernels;
  const Problem& problem;
  const Arguments& arguments;
  Operand& operand;
  bool is_q;
  float* scales;
  float* means;

  std::int64_t heads() const { return operand.tensor.shape[1]; }
  std::int64_t per_head() const {
    return own_scales_per_head(problem, operand.format, is_q ? problem.seqlen_q : problem.seqlen_kv,
                               operand.tensor.shape[3]);
  }
  std::int64_t length(const Sequence& s) const { return is_q ? s.seqlen_q : s.seqlen_kv; }
  HeadOfSequence rows(const Sequence& s, std::int64_t number, std::int64_t head) const {
    return {number, s.batch, is_q ? s.q_begin : s.kv_begin, head, {}};
  }
};

// The operand before any rounding, because its scales are still being computed.
Operand unrounded(const Operand& operand) {
  Operand values = operand;
  values.format.rounded.reset();
  return values;
}

// Does what mean_rows of numeric/quantize.h does, for rows of any format and without allocating.
void mean_of_head(const Preparation& p, std::int64_t number, std::int64_t head, float* scratch) {
  const std::int64_t head_dim = p.operand.tensor.shape[3];
  float* row = scratch;
  const Sequence s = sequence(p.arguments, number);
  const Operand values = unrounded(p.operand);
  const RowLoader loader(p.kernels, values, p.rows(s, number, head), nullptr);
  RowSums sums(reinterpret_cast<double*>(scratch + padded_row(head_dim)), head_dim);
  for (std::int64_t r = 0; r < p.length(s); ++r) {
    loader.load_values(r, row);
    sums.add(row);
  }
  sums.mean(p.means + (number * p.heads() + head) * head_dim);
}

// The magnitude of x as an integer. Integers have the order of finite floats, and one comparison
// excludes NaN and Inf.
std::uint32_t finite_magnitude(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFF;
  return bits < kInfinityBits ? bits : 0;
}

// Writes the largest finite magnitudes of one head where its scales will be.
void amax_of_head(const Preparation& p, std::int64_t number, std::int64_t head, float* scratch) {
  const std::int64_t head_dim = p.operand.tensor.shape[3];
  const Granularity granularity = p.operand.format.granularity;
  float* row = scratch;
  const Sequence s = sequence(p.arguments, number);
  const Operand values = unrounded(p.operand);
  const RowLoader loader(p.kernels, values, p.rows(s, number, head), nullptr);
  const std::int64_t per_head = p.per_head();
  float* amax = p.scales + (number * p.heads() + head) * per_head;
  std::fill_n(amax, per_head, 0.0f);
  for (std::int64_t r = 0; r < p.length(s); ++r) {
    loader.load_values(r, row);
    loader.transform(row);
    if (granularity == Granularity::channel) {
      for (std::int64_t c = 0; c < head_dim; ++c)
        amax[c] = std::max(amax[c], std::bit_cast<float>(finite_magnitude(row[c])));
      continue;
    }
    std::uint32_t largest_bits = 0;
    for (std::int64_t c = 0; c < head_dim; ++c)
      largest_bits = std::max(largest_bits, finite_magnitude(row[c]));
    const std::int64_t group = granularity == Granularity::row ? r
                               : granularity == Granularity::block
                                   ? r / p.problem.options.quantization.block_rows
                                   : 0;
    amax[group] = std::max(amax[group], std::bit_cast<float>(largest_bits));
  }
}

// Runs the least-squares search of numeric/quantize.h on a view of the tensor.
void least_squares(const Preparation& p, const ConstTensor& view, const float* mean,
                   float* scales) {
  QuantizeOptions options;
  options.granularity = p.operand.format.granularity;
  options.block_rows = p.problem.options.quantization.block_rows;
  options.rule = ScaleRule::least_squares;
  options.hadamard = p.operand.format.hadamard;
  compute_scales(view, *p.operand.format.rounded, options, mean, scales,
                 p.operand.format.max_quantized);
}

void least_squares_of_head(const Preparation& p, std::int64_t number, std::int64_t head) {
  const Sequence s = sequence(p.arguments, number);
  const HeadOfSequence rows = p.rows(s, number, head);
  ConstTensor view = p.operand.tensor;
  const std::int64_t first =
      rows.batch * view.stride[0] + head * view.stride[1] + rows.begin * view.stride[2];
  view.shape = {1, 1, p.length(s), view.shape[3]};
  if (view.shape[2] > 0)  // otherwise the pointer may be null
    view.data = static_cast<const std::byte*>(view.data) +
                first * static_cast<std::int64_t>(size_bytes(view.dtype));
  least_squares(p, view, p.operand.mean(number, head),
                p.scales + (number * p.heads() + head) * p.per_head());
}

// With granularity tensor the one scale comes from the largest amax of the heads.
void scales_from_amax(const Preparation& p) {
  const auto scale_of = [&p](float amax) {
    return scale_from_amax(*p.operand.format.rounded, amax, p.operand.format.max_quantized);
  };
  const std::int64_t count = p.problem.batch * p.heads() * p.per_head();
  if (p.operand.format.granularity == Granularity::tensor) {
    float amax = 0;
    for (std::int64_t i = 0; i < count; ++i) amax = std::max(amax, p.scales[i]);
    if (count > 0) p.scales[0] = scale_of(amax);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) p.scales[i] = scale_of(p.scales[i]);
}

void prepare_operand(Preparation p, float* scratch, std::int64_t scratch_stride, int workers) {
  const std::int64_t tasks = p.problem.batch * p.heads();
  const auto for_each_head = [&](auto body) {
    parallel_for(tasks, workers, [&](std::int64_t task, int worker) {
      body(task / p.heads(), task % p.heads(), scratch + worker * scratch_stride);
    });
  };
  if (p.operand.format.smooth) {
    for_each_head([&](std::int64_t b, std::int64_t h, float* own) { mean_of_head(p, b, h, own); });
    p.operand.means = p.means;
  }
  if (!p.operand.format.scales_of_ours()) return;
  const Quantization& quantization = p.problem.options.quantization;
  const Granularity granularity = p.operand.format.granularity;
  const bool by_tensor = granularity == Granularity::tensor;
  // In a varlen batch the tokens between sequences must not matter, so a per-tensor scale always
  // uses amax.
  const bool varlen_tensor = by_tensor && is_varlen(p.arguments);
  if (quantization.rule == ScaleRule::least_squares && by_tensor && !varlen_tensor) {
    least_squares(p, p.operand.tensor, p.operand.means, p.scales);
  } else if (quantization.rule == ScaleRule::least_squares && !varlen_tensor) {
    for_each_head([&](std::int64_t b, std::int64_t h, float*) { least_squares_of_head(p, b, h); });
  } else {
    for_each_head([&](std::int64_t b, std::int64_t h, float* own) { amax_of_head(p, b, h, own); });
    scales_from_amax(p);
  }
  const std::int64_t per_head = by_tensor ? 0 : p.per_head();
  p.operand.scales = {p.scales,
                      *p.operand.format.rounded,
                      {granularity, quantization.block_rows, {p.heads() * per_head, per_head, 1}},
                      false};
}

Operand operand_of(const Arguments& a, const ConstTensor& tensor, const OperandFormat& format,
                   const Scales& scales, std::int64_t max_len, VLayout layout = VLayout::rows) {
  Operand operand{tensor, format, {}, nullptr, layout, is_varlen(a)};
  if (format.scales_of_caller()) operand.scales = operand_scales(a, tensor, scales, max_len);
  return operand;
}

struct StoragePlan {
  std::int64_t q_scales, k_scales, v_scales, k_means, end;
};

StoragePlan plan_storage(const Problem& p, const OperandFormats& formats) {
  const auto scales = [&](const OperandFormat& format, std::int64_t heads, std::int64_t rows,
                          std::int64_t columns) {
    return p.batch * heads * own_scales_per_head(p, format, rows, columns);
  };
  StoragePlan plan{};
  plan.k_scales = plan.q_scales + scales(formats.q, p.heads_q, p.seqlen_q, p.head_dim);
  plan.v_scales = plan.k_scales + scales(formats.k, p.heads_kv, p.seqlen_kv, p.head_dim);
  plan.k_means = plan.v_scales + scales(formats.v, p.heads_kv, p.seqlen_kv, p.head_dim_v);
  plan.end = plan.k_means + (formats.k.smooth ? p.batch * p.heads_kv * p.head_dim : 0);
  return plan;
}

}  // namespace

std::int64_t prepared_floats(const Problem& problem) {
  return plan_storage(problem, formats_in_use(problem)).end;
}

std::int64_t prepare_scratch_floats(std::int64_t head_dim) { return 5 * padded_row(head_dim); }

Operands prepare(const Kernels& kernels, const Problem& problem, const Arguments& a, float* storage,
                 float* scratch, std::int64_t scratch_stride, int workers) {
  const OperandFormats formats = formats_in_use(problem);
  const StoragePlan at = plan_storage(problem, formats);
  Operands operands{
      operand_of(a, a.q, formats.q, a.q_scales, problem.seqlen_q),
      operand_of(a, a.k, formats.k, a.k_scales, problem.seqlen_kv),
      operand_of(a, v_by_rows(a), formats.v, a.v_scales, problem.seqlen_kv, a.v_layout)};
  operands.k.groups = a.k_groups;
  operands.v.groups = a.v_groups;
  prepare_operand({kernels, problem, a, operands.q, true, storage + at.q_scales, nullptr}, scratch,
                  scratch_stride, workers);
  prepare_operand(
      {kernels, problem, a, operands.k, false, storage + at.k_scales, storage + at.k_means},
      scratch, scratch_stride, workers);
  prepare_operand({kernels, problem, a, operands.v, false, storage + at.v_scales, nullptr}, scratch,
                  scratch_stride, workers);
  return operands;
}

}  // namespace octavo::cpu
