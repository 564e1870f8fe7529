// SPDX-License-Identifier: Apache-2.0
// The C interface of quantization.
#include <algorithm>

#include "base/error.h"
#include "octavo/octavo.h"
#include "octavo/octavo.hpp"
#include "runtime/c_api/c_reading.h"

namespace octavo {
namespace {

static_assert(static_cast<int>(ScaleRule::least_squares) == OCTAVO_LEAST_SQUARES);
static_assert(static_cast<int>(Operand::v) == OCTAVO_OPERAND_V);

Status read_options(const octavo_quantize_options* given, QuantizeOptions& out) {
  octavo_quantize_options c;
  octavo_quantize_options_init(&c);
  if (given != nullptr) OCTAVO_RETURN_IF_ERROR(read_sized(given, "options", c));
  OCTAVO_RETURN_IF_ERROR(read_enum(c.granularity, "granularity", kGranularities, out.granularity));
  OCTAVO_RETURN_IF_ERROR(read_enum(c.scale_rule, "scale_rule", "amax, least_squares", out.rule));
  OCTAVO_RETURN_IF_ERROR(read_enum(c.layout, "layout", "rows, transposed", out.layout));
  out.block_rows = c.block_rows;
  out.smooth = c.smooth != 0;
  out.hadamard = c.hadamard != 0;
  out.scales_given = c.scales_given != 0;
  out.max_quantized = c.max_quantized;
  return {};
}

Status read_arguments(const octavo_quantize_arguments* given, QuantizeArguments& out) {
  octavo_quantize_arguments c;
  octavo_quantize_arguments_init(&c);
  OCTAVO_RETURN_IF_ERROR(read_sized(given, "arguments", c));
  OCTAVO_RETURN_IF_ERROR(read_tensor(c.x, "x", out.x));
  OCTAVO_RETURN_IF_ERROR(read_tensor(c.quantized, "quantized", out.quantized));
  out.scales = c.scales;
  out.mean = c.mean;
  out.cu_seqlens = c.cu_seqlens;
  out.sequences = c.sequences;
  out.max_seqlen = c.max_seqlen;
  return {};
}

}  // namespace
}  // namespace octavo

using octavo::Status;

extern "C" {

void octavo_quantize_options_init_sized(octavo_quantize_options* options, size_t size) {
  octavo_quantize_options o{};
  o.granularity = OCTAVO_PER_HEAD;
  o.block_rows = octavo::QuantizeOptions{}.block_rows;
  octavo::write_sized(o, options, size);
}

void octavo_quantize_arguments_init_sized(octavo_quantize_arguments* arguments, size_t size) {
  octavo::write_sized(octavo_quantize_arguments{}, arguments, size);
}

octavo_status octavo_quantize(const octavo_tensor* x, const octavo_quantize_options* options,
                              const octavo_tensor* quantized, float* scales, float* mean,
                              octavo_range_stats* stats) {
  return octavo::guarded([&]() -> Status {
    OCTAVO_RETURN_IF_ERROR(octavo::require(x, "x"));
    OCTAVO_RETURN_IF_ERROR(octavo::require(quantized, "quantized"));
    octavo::QuantizeOptions o;
    OCTAVO_RETURN_IF_ERROR(octavo::read_options(options, o));
    octavo::ConstTensor from;
    octavo::Tensor to;
    OCTAVO_RETURN_IF_ERROR(octavo::read_tensor(*x, "x", from));
    OCTAVO_RETURN_IF_ERROR(octavo::read_tensor(*quantized, "quantized", to));
    octavo::RangeStats found;
    OCTAVO_RETURN_IF_ERROR(octavo::quantize(from, o, to, scales, mean, &found));
    if (stats != nullptr)
      *stats = {found.amax,   found.clipped_fraction, found.flushed_fraction, found.sqnr_db,
                found.values, found.nan_values,       found.inf_values};
    return {};
  });
}

octavo_status octavo_quantize_on_device(const octavo_quantize_arguments* arguments,
                                        const octavo_quantize_options* options, const char* device,
                                        void* stream) {
  return octavo::guarded([&]() -> Status {
    octavo::QuantizeArguments a;
    octavo::QuantizeOptions o;
    octavo::Device on;
    OCTAVO_RETURN_IF_ERROR(octavo::read_arguments(arguments, a));
    OCTAVO_RETURN_IF_ERROR(octavo::read_options(options, o));
    OCTAVO_RETURN_IF_ERROR(octavo::read_device(device, on));
    return octavo::quantize(a, o, on, stream);
  });
}

octavo_status octavo_operand_quantization(octavo_operand operand, int32_t precision,
                                          int64_t head_dim, const char* device, int32_t* format,
                                          octavo_quantize_options* options) {
  return octavo::guarded([&]() -> Status {
    OCTAVO_RETURN_IF_ERROR(octavo::require(format, "format"));
    OCTAVO_RETURN_IF_ERROR(octavo::require(options, "options"));
    octavo::Operand of{};
    octavo::Precision by{};
    octavo::Device on;
    OCTAVO_RETURN_IF_ERROR(octavo::read_enum(operand, "operand", "q, k, v", of));
    OCTAVO_RETURN_IF_ERROR(octavo::read_enum(precision, "precision", octavo::kPrecisions, by));
    OCTAVO_RETURN_IF_ERROR(octavo::read_device(device, on));
    const octavo::Result<octavo::OperandQuantization> made =
        octavo::operand_quantization(of, by, head_dim, on);
    if (!made.ok()) return made.status();
    octavo_quantize_options c;
    octavo_quantize_options_init(&c);
    c.granularity = static_cast<int32_t>(made->options.granularity);
    c.block_rows = made->options.block_rows;
    c.layout = static_cast<int32_t>(made->options.layout);
    c.max_quantized = made->options.max_quantized;
    *format = static_cast<int32_t>(made->format);
    octavo::write_sized(c, options, options->size);
    return {};
  });
}

octavo_status octavo_dequantize(const octavo_tensor* quantized, const octavo_scales* scales,
                                const octavo_tensor* out) {
  return octavo::guarded([&]() -> Status {
    OCTAVO_RETURN_IF_ERROR(octavo::require(quantized, "quantized"));
    OCTAVO_RETURN_IF_ERROR(octavo::require(scales, "scales"));
    OCTAVO_RETURN_IF_ERROR(octavo::require(out, "out"));
    octavo::ConstTensor from;
    octavo::Scales by;
    octavo::Tensor to;
    OCTAVO_RETURN_IF_ERROR(octavo::read_tensor(*quantized, "quantized", from));
    OCTAVO_RETURN_IF_ERROR(octavo::read_scales(*scales, "scales", by));
    OCTAVO_RETURN_IF_ERROR(octavo::read_tensor(*out, "out", to));
    return octavo::dequantize(from, by, to);
  });
}

}  // extern "C"
