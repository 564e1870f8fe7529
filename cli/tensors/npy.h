// SPDX-License-Identifier: Apache-2.0
// NumPy's .npy files, versions 1.0, 2.0 and 3.0.
//
// NumPy has no bf16 and no 8-bit floats. They are stored as <u2 or <V2 (bf16) and as |u1, |V1 or
// |f1 (8-bit); `untyped` gives the type of such data. Without it |u1 is sim8, <V2 is bf16 (as
// ml_dtypes writes it), and the others are rejected.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "octavo/octavo.hpp"
#include "tensors/byte_source.h"
#include "tensors/host_tensor.h"

namespace octavo::cli {

Result<HostTensor> read_npy(const ByteSource& source, std::optional<DType> untyped = {});
Result<HostTensor> parse_npy(std::span<const std::byte> bytes, std::optional<DType> untyped = {});

// The header of a file: version 1.0, padded to 64 bytes. e4m3 and e5m2 are written as |V1, so that
// no reader takes them for integers. bf16 is not supported: convert it first.
std::string npy_header(const HostTensor& tensor);

}  // namespace octavo::cli
