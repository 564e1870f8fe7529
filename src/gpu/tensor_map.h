// Tensor maps: what TMA is told of a tensor, by the driver.
#pragma once

#include <array>
#include <cstdint>

#include "device/ptx/tma.cuh"
#include "gpu/driver.h"
#include "octavo/octavo.hpp"

namespace octavo {

// Boxes of rows and columns of one head, in a tensor of (column, row, head, batch).
struct TensorMapFields {
  const void* address = nullptr;
  cuda::TensorMapType type = cuda::TensorMapType::f16;
  std::array<std::uint64_t, 4> shape{};
  std::array<std::uint64_t, 3> stride_bytes{};  // of row, head and batch
  std::array<std::uint32_t, 4> box{};
  cuda::TensorMapSwizzle swizzle = cuda::TensorMapSwizzle::bytes_128;
  bool operator==(const TensorMapFields&) const = default;
};

// That TMA can read and write the tensor: its address and the strides that are stepped along are
// multiples of 16 bytes, none is 0, and none is too long.
bool tma_reaches(const ConstTensor& tensor);

// `tensor` has 16 or 8 bits, is not empty, and TMA reaches it. A box's row is a swizzle's width:
// 128, 64 or 32 bytes.
TensorMapFields row_boxes(const ConstTensor& tensor, int box_rows, int box_columns);

Status encode(const Driver& driver, const TensorMapFields& fields, ptx::TensorMap& map);

// The same tensor elsewhere, by a driver that can (CUDA 12 and later).
Status move_map(const Driver& driver, const void* address, ptx::TensorMap& map);

// As encode(), from what this thread last encoded: a map that differs in its address alone gets
// that one changed. Threads share nothing, and so none waits for another.
Status encode_again(const Driver& driver, const TensorMapFields& fields, ptx::TensorMap& map);

}  // namespace octavo
