#include "attention/operand.h"

namespace octavo {
namespace {

// The format a mode gives Q and K, and the one it gives V.
struct ModeFormats {
  std::optional<DType> qk, v;
};

ModeFormats mode_formats(Precision precision) {
  switch (precision) {
    case Precision::native:
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
  if (format.scales_of_ours()) format.granularity = of_ours;
  return format;
}

}  // namespace

OperandFormats operand_formats(const Problem& problem) {
  const Options& options = problem.options;
  const Quantization& quantization = options.quantization;
  ModeFormats mode = mode_formats(options.precision);
  // The mixed modes take a 16-bit V as it is: bf16 is not squeezed through f16.
  if (mode.v != mode.qk && problem.v == DType::bf16) mode.v = DType::bf16;
  const bool sim8 = options.precision == Precision::sim8;
  const Granularity qk = quantization.qk.value_or(sim8 ? Granularity::head : Granularity::row);
  const Granularity v = quantization.v.value_or(sim8 ? Granularity::head : Granularity::channel);

  OperandFormats formats{operand_format(problem.q, mode.qk, problem.q_scales, qk),
                         operand_format(problem.k, mode.qk, problem.k_scales, qk),
                         operand_format(problem.v, mode.v, problem.v_scales, v)};
  formats.k.smooth = quantization.smooth_k;
  formats.q.hadamard = quantization.hadamard;
  formats.k.hadamard = quantization.hadamard;
  return formats;
}

}  // namespace octavo
