#pragma once

#include <nanobind/nanobind.h>

#include <string_view>

namespace octavo::python {

// Returns an octavo.Quantized with its mean and range statistics.
nanobind::object quantize_array(nanobind::handle x, std::string_view format,
                                std::string_view granularity, std::int64_t block_rows,
                                std::string_view rule, bool smooth, bool hadamard,
                                nanobind::handle scales, nanobind::handle layout, bool transposed,
                                float max_quantized);
nanobind::object dequantize_array(nanobind::handle quantized, nanobind::handle dtype,
                                  nanobind::handle layout);

}  // namespace octavo::python
