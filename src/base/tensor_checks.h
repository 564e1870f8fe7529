// SPDX-License-Identifier: Apache-2.0
// Checks of single tensors: shapes, strides, pointers, and memory that they share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "octavo/octavo.hpp"

namespace octavo {

inline constexpr std::int64_t kLargestDimension = INT32_MAX;

bool known_dtype(DType dtype);

inline bool is_empty(const ConstTensor& t) {
  return t.shape[0] == 0 || t.shape[1] == 0 || t.shape[2] == 0 || t.shape[3] == 0;
}

// The bytes from the first of a tensor to its last; 0 if it has no elements. Strides are not
// negative.
inline std::size_t extent_bytes(const ConstTensor& t) {
  if (is_empty(t)) return 0;
  std::int64_t last = 0;
  for (std::size_t i = 0; i < 4; ++i) last += (t.shape[i] - 1) * t.stride[i];
  return static_cast<std::size_t>(last + 1) * size_bytes(t.dtype);
}

// Checks one tensor: shape, strides, pointer, extent. `what` is its name in messages.
Status validate_tensor(std::string_view what, const ConstTensor& tensor);
// The same for any dtype.
Status validate_view(std::string_view what, const ConstTensor& tensor);
// Two elements of a tensor that is written must not share memory.
Status validate_no_self_overlap(std::string_view what, const Tensor& tensor);
// A tensor that is written must not share memory with another.
Status validate_apart(std::string_view what, const Tensor& written, std::string_view other_what,
                      const ConstTensor& other);

}  // namespace octavo
