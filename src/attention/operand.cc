// SPDX-License-Identifier: Apache-2.0
#include "attention/operand.h"

#include "numeric/formats.h"
#include "numeric/scale.h"

namespace octavo {
namespace {

// The formats to which a precision rounds Q and K, and V.
struct ModeFormats {
  std::optional<DType> qk, v;
};

ModeFormats mode_formats(Precision precision) {
  switch (precision) {
    case Precision::native:
    case Precision::automatic:  // not picked yet
      return {};
    case Precision::fp16:
      return {DType::f16, DType::f16};
    case Precision::bf16:
      return {DType::bf16, DType::bf16};
    case Precision::fp8:
    case Precision::fp8_fast:
      return {DType::e4m3, DType::e4m3};
    case Precision::fp8_mixed:
      return {DType::e4m3, DType::f16};
    case Precision::int8:
      return {DType::int8, DType::int8};
    case Precision::int8_mixed:
      return {DType::int8, DType::f16};
    case Precision::sim8:
      return {DType::sim8, DType::sim8};
  }
  return {};
}

OperandFormat operand_format(DType stored, std::optional<DType> mode, Granularity of_caller,
                             Granularity of_ours) {
  OperandFormat format;
  format.stored = stored;
  if (is_8bit(stored)) {
    format.granularity = of_caller;
    return format;
  }
  if (mode != stored) format.rounded = mode;
  if (!format.scales_of_ours()) return format;
  format.granularity = of_ours;
  format.max_quantized = largest(*mode);
  return format;
}

// Bounds FP8 values of Q and K so that their dot products fit FP16. This costs no accuracy, because
// FP8 is a floating-point format. A least-squares scale may use the whole range.
void bound_scores(const Problem& problem, OperandFormat& format) {
  if (format.scales_of_ours() && problem.options.quantization.rule == ScaleRule::amax)
    format.max_quantized = max_quantized_qk(*format.rounded, problem.head_dim);
}

}  // namespace

OperandFormats operand_formats(const Problem& problem) {
  const Options& options = problem.options;
  const Quantization& quantization = options.quantization;
  ModeFormats mode = mode_formats(options.precision);
  // The mixed precision modes leave a 16-bit V unchanged: they do not convert bf16 to f16.
  if (mode.v != mode.qk && problem.v == DType::bf16) mode.v = DType::bf16;
  const bool sim8 = options.precision == Precision::sim8;
  const Granularity q = quantization.qk.value_or(sim8 ? Granularity::head : Granularity::row);
  // FP8 is a floating-point format, so finer scales of K gain no accuracy, and they cost 8% of the
  // time on a GPU.
  const bool fp8 = mode.qk == DType::e4m3;
  const Granularity k =
      quantization.qk.value_or(sim8 || fp8 ? Granularity::head : Granularity::block);
  const Granularity v = quantization.v.value_or(sim8 ? Granularity::head : Granularity::channel);

  OperandFormats formats{operand_format(problem.q, mode.qk, problem.q_scales, q),
                         operand_format(problem.k, mode.qk, problem.k_scales, k),
                         operand_format(problem.v, mode.v, problem.v_scales, v)};
  bound_scores(problem, formats.q);
  bound_scores(problem, formats.k);
  formats.k.smooth = quantization.smooth_k;
  formats.q.hadamard = quantization.hadamard;
  formats.k.hadamard = quantization.hadamard;
  return formats;
}

}  // namespace octavo
