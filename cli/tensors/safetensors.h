// SPDX-License-Identifier: Apache-2.0
// .safetensors files: an 8-byte header length, a JSON header, then the tensors' bytes.
// U8 is read as sim8, or as the `untyped` format where that is e4m3 or e5m2.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "octavo/octavo.hpp"
#include "tensors/byte_source.h"
#include "tensors/host_tensor.h"

namespace octavo::cli {

// Reads the tensor named `wanted`. The name may be empty if the file holds only one tensor.
Result<HostTensor> read_safetensors(const ByteSource& source, std::string_view wanted,
                                    std::optional<DType> untyped = {});
Result<HostTensor> parse_safetensors(std::span<const std::byte> bytes, std::string_view wanted,
                                     std::optional<DType> untyped = {});

// The header of a file that holds one tensor: everything before the data.
std::string safetensors_header(const HostTensor& tensor, std::string_view tensor_name);

}  // namespace octavo::cli
