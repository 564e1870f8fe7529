// SPDX-License-Identifier: Apache-2.0
// TMA tensor maps, encoded by the driver.
#pragma once

#include <array>
#include <cstdint>

#include "device/ptx/tma.cuh"
#include "gpu/driver/driver.h"
#include "octavo/octavo.hpp"

namespace octavo {

// A box of rows and columns of one head, in a tensor with dimensions (column, row, head, batch).
struct TensorMapFields {
  const void* address = nullptr;
  cuda::TensorMapType type = cuda::TensorMapType::f16;
  std::array<std::uint64_t, 4> shape{};
  std::array<std::uint64_t, 3> stride_bytes{};  // of row, head and batch
  std::array<std::uint32_t, 4> box{};
  cuda::TensorMapSwizzle swizzle = cuda::TensorMapSwizzle::bytes_128;
  bool operator==(const TensorMapFields&) const = default;
};

// Whether TMA can read and write the tensor: its address and the strides of dimensions larger than
// 1 are multiples of 16 bytes, and no such stride is 0 or too long.
bool tma_can_address(const ConstTensor& tensor);

// `tensor` is 32-, 16- or 8-bit, or boolean, not empty, and addressable by TMA. A box row is as
// wide as the swizzle: 128, 64 or 32 bytes.
TensorMapFields row_boxes(const ConstTensor& tensor, int box_rows, int box_columns);

Status encode(const Driver& driver, const TensorMapFields& fields, ptx::TensorMap& map);

// Changes the address of a map. Needs a driver of CUDA 12 or later.
Status move_map(const Driver& driver, const void* address, ptx::TensorMap& map);

// As encode(), but reuses this thread's recent maps: if only the address differs, it is replaced.
// The maps are per thread, so threads do not wait for each other.
Status encode_again(const Driver& driver, const TensorMapFields& fields, ptx::TensorMap& map);

}  // namespace octavo
