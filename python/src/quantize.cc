// SPDX-License-Identifier: Apache-2.0
// Quantizes arrays on their device, and dequantizes arrays in host memory.
#include "quantize.h"

#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <array>
#include <string>

#include "call.h"
#include "errors.h"

namespace nb = nanobind;

namespace octavo::python {
namespace {

void require_host(const Array& array, const char* what) {
  if (array.device.kind == Device::Kind::cpu) return;
  refuse(PyExc_NotImplementedError, what, "on " + name(array.device),
         "arrays in host memory here; Quantized.dequantize() also reads a GPU's");
}

// Allocates scales of shape (1), (B, H), (B, H, blocks), (B, H, S) or (B, H, D); `batch` counts the
// sequences of a varlen batch, but for row scales.
nb::object make_scales(const Array& like, std::int64_t batch, std::int64_t heads,
                       Granularity granularity, std::int64_t count) {
  const std::array<std::int64_t, 3> shape = {batch, heads,
                                             count / std::max<std::int64_t>(1, batch * heads)};
  if (granularity == Granularity::tensor) return make_array(like, DType::f32, 1, &count);
  return make_array(like, DType::f32, granularity == Granularity::head ? 2 : 3, shape.data());
}

nb::dict as_dict(const RangeStats& stats) {
  nb::dict made;
  made["amax"] = stats.amax;
  made["clipped_fraction"] = stats.clipped_fraction;
  made["flushed_fraction"] = stats.flushed_fraction;
  made["sqnr_db"] = stats.sqnr_db;
  made["values"] = stats.values;
  made["nan_values"] = stats.nan_values;
  made["inf_values"] = stats.inf_values;
  return made;
}

// Copies the caller's scales into the array of the result.
void take_scales(nb::handle given, std::int64_t count, float* into) {
  const Array scales = read_array(given, "scales");
  require_host(scales, "scales");
  if (element_type(scales, "scales") != DType::f32)
    refuse(PyExc_TypeError, "scales", "of " + dtype_name(scales.dtype), "float32");
  std::int64_t dense = 1;
  const int dimensions = std::min(scales.dimensions, kMostDimensions);
  bool contiguous = scales.dimensions <= kMostDimensions;
  for (int i = dimensions - 1; i >= 0; --i) {
    contiguous = contiguous && (scales.shape[i] == 1 || scales.stride[i] == dense);
    dense *= scales.shape[i];
  }
  if (!contiguous || dense != count)
    refuse(PyExc_ValueError, "scales", std::to_string(dense) + " numbers",
           std::to_string(count) + " numbers, contiguous");
  std::copy_n(static_cast<const float*>(scales.data), count, into);
}

// The format and the options of a call, with the defaults of an operand or of any tensor.
OperandQuantization quantization_of(const QuantizeCall& call, std::int64_t head_dim,
                                    Device device) {
  OperandQuantization made;
  const bool of_operand = !call.operand.is_none();
  if (of_operand) {
    if (!call.format.is_none())
      refuse(PyExc_ValueError, "format", "given together with operand",
             "precision, which says the format of an operand");
    made = check(
        operand_quantization(check(parse_operand(text_of(call.operand, "operand", "q, k, v"))),
                             check(parse_precision(call.precision)), head_dim, device));
  } else if (!call.format.is_none()) {
    const std::string_view format = text_of(call.format, "format", "e4m3, e5m2, int8, sim8");
    made.format = check(parse_dtype(format));
    if (!is_8bit(made.format))
      refuse(PyExc_ValueError, "format", quoted(format), "e4m3, e5m2, int8, sim8");
  }
  QuantizeOptions& o = made.options;
  o.block_rows = call.block_rows;
  o.rule = check(parse_scale_rule(call.rule));
  o.smooth = call.smooth;
  o.hadamard = call.hadamard;
  o.scales_given = !call.scales.is_none();
  if (!call.granularity.is_none())
    o.granularity =
        check(parse_granularity(text_of(call.granularity, "granularity", "its name, or None")));
  if (!call.transposed.is_none())
    o.layout = nb::cast<bool>(call.transposed) ? VLayout::transposed : VLayout::rows;
  if (!call.max_quantized.is_none())
    o.max_quantized = nb::cast<float>(call.max_quantized);
  else if (o.scales_given || o.rule != ScaleRule::amax)
    o.max_quantized = 0;
  else if (!of_operand && made.format == DType::e4m3)
    o.max_quantized = check(operand_quantization(Operand::k, Precision::fp8, head_dim, device))
                          .options.max_quantized;
  return made;
}

// Where a varlen batch's sequences start, in `arguments`. Returns what owns the array's memory.
Array read_sequences(const QuantizeCall& call, const Array& x, QuantizeArguments& arguments) {
  Array starts = read_array(call.cu_seqlens, "cu_seqlens");
  if (!(starts.device == x.device))
    refuse(PyExc_ValueError, "cu_seqlens", "on " + name(starts.device), name(x.device) + ", as x");
  if (starts.dtype != dlpack_type(nb::dlpack::dtype_code::Int, 32) || starts.dimensions != 1 ||
      starts.shape[0] < 1 || (starts.shape[0] > 1 && starts.stride[0] != 1))
    refuse(PyExc_TypeError, "cu_seqlens", "another kind of array",
           "contiguous int32 of (sequences + 1)");
  arguments.cu_seqlens = static_cast<const std::int32_t*>(starts.data);
  arguments.sequences = starts.shape[0] - 1;
  if (!call.max_seqlen.is_none()) {
    arguments.max_seqlen =
        number_of(call.max_seqlen, "max_seqlen", "the length of the longest sequence");
    return starts;
  }
  if (x.device.kind != Device::Kind::cpu)
    refuse(PyExc_ValueError, "max_seqlen", "None",
           "a number where cu_seqlens are on a GPU: to read them here would wait for it");
  for (std::int64_t i = 0; i < arguments.sequences; ++i)
    arguments.max_seqlen = std::max(
        arguments.max_seqlen, std::int64_t{arguments.cu_seqlens[i + 1]} - arguments.cu_seqlens[i]);
  return starts;
}

// Runs without the GIL. Statistics are of host memory.
Status run_quantize(const QuantizeArguments& arguments, const QuantizeOptions& options,
                    Device device, Stream stream, RangeStats* stats) {
  const nb::gil_scoped_release released;
  if (stats != nullptr)
    return quantize(arguments.x, options, arguments.quantized, arguments.scales, arguments.mean,
                    stats);
  return quantize(arguments, options, device, stream);
}

}  // namespace

nb::object quantize_array(nb::handle x, const QuantizeCall& call) {
  const Array array = read_array(x, "x");
  const bool varlen = !call.cu_seqlens.is_none();
  const Layout layout = varlen ? Layout::varlen : layout_of(call.layout);
  QuantizeArguments arguments;
  const Tensor from = tensor_view(array, element_type(array, "x"), layout, "x");
  arguments.x = from;
  const Array starts = varlen ? read_sequences(call, array, arguments) : Array{};
  const auto [format, options] = quantization_of(call, from.shape[3], array.device);
  if (options.scales_given) require_host(array, "x with scales");
  const std::int64_t count = scale_count(arguments, options);
  if (options.block_rows < 1)
    refuse(PyExc_ValueError, "block_rows", std::to_string(options.block_rows), "at least 1");

  const bool transposed = options.layout == VLayout::transposed;
  const std::array<std::int64_t, 4> columns = {
      from.shape[0], from.shape[1], from.shape[3],
      transposed_columns(from.shape[2], arguments.sequences)};
  const bool by_sequence = varlen && options.granularity != Granularity::row;
  const std::int64_t batch = by_sequence ? arguments.sequences : from.shape[0];
  nb::object data =
      transposed ? make_array(array, format, 4, columns.data()) : make_like(array, format);
  nb::object scales = make_scales(array, batch, from.shape[1], options.granularity, count);
  const Array data_array = read_array(data, "data");
  arguments.quantized = tensor_view(data_array, format, transposed ? Layout::bhsd : layout, "data");
  arguments.scales = static_cast<float*>(read_array(scales, "scales").data);
  if (options.scales_given) take_scales(call.scales, count, arguments.scales);
  nb::object mean = nb::none();
  if (options.smooth) {
    const std::array<std::int64_t, 3> shape = {varlen ? arguments.sequences : from.shape[0],
                                               from.shape[1], from.shape[3]};
    mean = make_array(array, DType::f32, 3, shape.data());
    arguments.mean = static_cast<float*>(read_array(mean, "mean").data);
  }
  const bool on_gpu = array.device.kind != Device::Kind::cpu;
  const Stream stream = !on_gpu                  ? nullptr
                        : !call.stream.is_none() ? stream_of(call.stream)
                                                 : current_stream(array);
  RangeStats stats;
  const bool with_stats = !on_gpu && !varlen;
  check(run_quantize(arguments, options, array.device, stream, with_stats ? &stats : nullptr));
  if (on_gpu && array.type->framework == Framework::other) check(synchronize(array.device, stream));
  if (options.smooth) mean = finish(array, mean);
  return nb::module_::import_("octavo._quantized")
      .attr("Quantized")(finish(array, data), finish(array, scales), name(format),
                         name(options.granularity), options.block_rows, mean,
                         with_stats ? nb::object(as_dict(stats)) : nb::object(nb::none()),
                         transposed, options.max_quantized,
                         transposed ? nb::object(nb::int_(from.shape[2])) : nb::object(nb::none()));
}

nb::object dequantize_array(nb::handle quantized, nb::handle dtype, nb::handle layout) {
  const QuantizedArray found = read_quantized(quantized, "quantized");
  require_host(found.data, "quantized");
  if (found.layout == VLayout::transposed)
    refuse(PyExc_NotImplementedError, "quantized", "transposed",
           "tensors that are not transposed here; Quantized.dequantize() reads others too");
  if (found.format == DType::int4)
    refuse(PyExc_NotImplementedError, "quantized", "int4", "8-bit tensors; KvCache.read() of int4");
  const Layout order = layout_of(layout);
  const Tensor from = tensor_view(found.data, found.format, order, "quantized");
  const std::int64_t wanted =
      scale_count(from.shape, found.view.granularity, found.view.block_rows);
  if (wanted != found.scale_count)
    refuse(PyExc_ValueError, "quantized.scales", std::to_string(found.scale_count) + " numbers",
           std::to_string(wanted) + ", one per " + std::string(name(found.view.granularity)));
  const DType to = dtype_of(dtype, "dtype");
  nb::object out = make_like(found.data, to);
  const Array written = read_array(out, "out");
  Status status;
  {
    const nb::gil_scoped_release released;
    status = dequantize(from, found.view, tensor_view(written, to, order, "out"));
  }
  check(status);
  return finish(found.data, std::move(out));
}

}  // namespace octavo::python
