// Quantizes and dequantizes arrays in host memory.
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
         "arrays in host memory here; attention(precision=...) quantizes on the GPU itself");
}

// Allocates scales of shape (1), (B, H), (B, H, blocks), (B, H, S) or (B, H, D).
nb::object make_scales(const Array& like, const Tensor& x, Granularity granularity,
                       std::int64_t count) {
  const std::array<std::int64_t, 3> shape = {
      x.shape[0], x.shape[1], count / std::max<std::int64_t>(1, x.shape[0] * x.shape[1])};
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

}  // namespace

nb::object quantize_array(nb::handle x, std::string_view format, std::string_view granularity,
                          std::int64_t block_rows, std::string_view rule, bool smooth,
                          bool hadamard, nb::handle scales, nb::handle layout, bool transposed,
                          float max_quantized) {
  const Array array = read_array(x, "x");
  require_host(array, "x");
  const Tensor from = tensor_view(array, element_type(array, "x"), layout_of(layout), "x");
  const DType dtype = check(parse_dtype(format));
  if (!is_8bit(dtype)) refuse(PyExc_ValueError, "format", quoted(format), "e4m3, e5m2, int8, sim8");
  QuantizeOptions options{check(parse_granularity(granularity)),
                          block_rows,
                          check(parse_scale_rule(rule)),
                          smooth,
                          hadamard,
                          !scales.is_none(),
                          transposed ? VLayout::transposed : VLayout::rows,
                          max_quantized};
  const std::int64_t count = scale_count(from.shape, options.granularity, block_rows);
  if (count < 0) refuse(PyExc_ValueError, "block_rows", std::to_string(block_rows), "at least 1");

  const std::array<std::int64_t, 4> columns = {from.shape[0], from.shape[1], from.shape[3],
                                               transposed_columns(from.shape[2])};
  nb::object data =
      transposed ? make_array(array, dtype, 4, columns.data()) : make_like(array, dtype);
  nb::object made_scales = make_scales(array, from, options.granularity, count);
  nb::object mean = nb::none();
  const Array data_array = read_array(data, "data"),
              scales_array = read_array(made_scales, "scales");
  auto* const scale_data = static_cast<float*>(scales_array.data);
  if (options.scales_given) take_scales(scales, count, scale_data);
  float* mean_data = nullptr;
  if (smooth) {
    const std::array<std::int64_t, 3> shape = {from.shape[0], from.shape[1], from.shape[3]};
    mean = make_array(array, DType::f32, 3, shape.data());
    mean_data = static_cast<float*>(read_array(mean, "mean").data);
  }
  RangeStats stats;
  Status status;
  {
    const nb::gil_scoped_release released;
    const Layout order = transposed ? Layout::bhsd : layout_of(layout);
    status = quantize(from, options, tensor_view(data_array, dtype, order, "data"), scale_data,
                      mean_data, &stats);
  }
  check(status);
  if (smooth) mean = finish(array, mean);
  return nb::module_::import_("octavo._quantized")
      .attr("Quantized")(finish(array, data), finish(array, made_scales), format, granularity,
                         block_rows, mean, as_dict(stats), transposed, max_quantized);
}

nb::object dequantize_array(nb::handle quantized, nb::handle dtype, nb::handle layout) {
  const QuantizedArray found = read_quantized(quantized, "quantized");
  require_host(found.data, "quantized");
  if (found.layout == VLayout::transposed)
    refuse(PyExc_NotImplementedError, "quantized", "transposed", "tensors that are not transposed");
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
