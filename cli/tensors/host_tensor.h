// SPDX-License-Identifier: Apache-2.0
// A tensor that owns its memory, for the file readers and the commands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo::cli {

// Contiguous, row-major, of any rank: scales and means have fewer dimensions than attention's four.
struct HostTensor {
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;

  std::int64_t elements() const;
  Tensor flat();  // as (1, 1, 1, elements)
  ConstTensor flat() const;
};

using Shape4 = std::array<std::int64_t, 4>;

// Bytes of a contiguous tensor. Fails if any product of dimensions overflows int64, even with a
// dimension of 0, because strides are such products.
Result<std::uint64_t> contiguous_bytes(const std::vector<std::int64_t>& shape, DType dtype);

// A tensor of zeros. Sizes beyond this machine's memory are an error, so that the out-of-memory
// killer does not end the process.
Result<HostTensor> make_tensor(std::string_view what, DType dtype,
                               const std::vector<std::int64_t>& shape);

// The tensor as (batch, heads, seqlen, head_dim); fails for another rank.
Result<Tensor> bhsd_view(std::string_view what, HostTensor& tensor);

std::string shape_text(const std::vector<std::int64_t>& shape);  // "(2, 8, 512, 64)"

}  // namespace octavo::cli
