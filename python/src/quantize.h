// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string_view>

namespace octavo::python {

// The arguments of octavo.quantize() besides x; None where a default depends on the others.
struct QuantizeCall {
  nanobind::handle format, operand, granularity, scales, layout, transposed, max_quantized;
  nanobind::handle cu_seqlens, max_seqlen, stream;
  std::string_view precision, rule;
  std::int64_t block_rows = 64;
  bool smooth = false, hadamard = false;
};

// Returns an octavo.Quantized with its mean; of an array in host memory also range statistics.
nanobind::object quantize_array(nanobind::handle x, const QuantizeCall& call);
nanobind::object dequantize_array(nanobind::handle quantized, nanobind::handle dtype,
                                  nanobind::handle layout);

}  // namespace octavo::python
