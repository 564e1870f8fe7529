// SPDX-License-Identifier: Apache-2.0
#include "evidence/cases/quantized_call.h"

#include "attention/operand.h"
#include "base/error.h"
#include "numeric/quantize.h"
#include "numeric/transposed.h"

namespace octavo::evidence {
namespace {

Status quantize_one(const OperandFormat& format, const Quantization& quantization, VLayout layout,
                    QuantizedCall::Operand& made, ConstTensor& tensor, Scales& scales) {
  QuantizeOptions options;
  options.granularity = format.granularity;
  options.block_rows = quantization.block_rows;
  options.rule = quantization.rule;
  options.hadamard = format.hadamard;
  options.layout = layout;
  made.values = make_memory(Layout::bhsd, *format.rounded, code_shape(tensor.shape, layout));
  made.scales.resize(
      static_cast<std::size_t>(scale_count(tensor.shape, options.granularity, options.block_rows)));
  OCTAVO_RETURN_IF_ERROR(
      quantize_to(format.max_quantized, tensor, options, made.values.view, made.scales.data()));
  tensor = made.values.view;
  scales = {made.scales.data(), options.granularity, options.block_rows, {}, format.max_quantized};
  return {};
}

}  // namespace

Result<QuantizedCall> quantize_ahead(const Arguments& wide, const Options& options,
                                     VLayout v_layout) {
  const Result<Problem> run_problem = problem_of(wide, options);
  if (!run_problem.ok()) return run_problem.status();
  const OperandFormats formats = operand_formats(*run_problem);
  for (const OperandFormat* format : {&formats.q, &formats.k, &formats.v})
    if (!format->scales_of_ours() || format->smooth)
      return invalid("precision", name(options.precision),
                     "fp8, fp8_fast, int8, sim8 without smooth_k, where operands are quantized "
                     "before the call");
  QuantizedCall call;
  Arguments& a = call.arguments = wide;
  const Quantization& z = options.quantization;
  OCTAVO_RETURN_IF_ERROR(quantize_one(formats.q, z, VLayout::rows, call.q, a.q, a.q_scales));
  OCTAVO_RETURN_IF_ERROR(quantize_one(formats.k, z, VLayout::rows, call.k, a.k, a.k_scales));
  OCTAVO_RETURN_IF_ERROR(quantize_one(formats.v, z, v_layout, call.v, a.v, a.v_scales));
  a.v_layout = v_layout;
  return call;
}

}  // namespace octavo::evidence
