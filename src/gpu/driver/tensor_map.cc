// SPDX-License-Identifier: Apache-2.0
#include "gpu/driver/tensor_map.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace octavo {
namespace {

constexpr std::uint64_t kAlignment = 16;
constexpr std::uint64_t kLongestStride = std::uint64_t{1} << 40;  // exclusive

std::uint64_t stride_bytes(const ConstTensor& t, std::size_t dimension) {
  return static_cast<std::uint64_t>(t.stride[dimension]) * size_bytes(t.dtype);
}

// The tensor maps that a thread has encoded most recently. A new map replaces the oldest. A launch
// needs four maps, and K and V usually share one.
class RecentMaps {
 public:
  struct Entry {
    ptx::TensorMap map{};
    TensorMapFields fields{};
    const Driver* driver = nullptr;  // the encoder; the encoding differs between drivers
  };

  const Entry* find(const Driver& driver, const TensorMapFields& fields) const {
    const std::uint64_t hash = hash_of(fields);
    for (std::size_t i = 0; i < kEntries; ++i) {
      if (hashes_[i] != hash || entries_[i].driver != &driver) continue;
      TensorMapFields moved = entries_[i].fields;
      moved.address = fields.address;
      if (moved == fields) return &entries_[i];
    }
    return nullptr;
  }

  void add(const Driver& driver, const TensorMapFields& fields, const ptx::TensorMap& map) {
    hashes_[next_] = hash_of(fields);
    entries_[next_] = {map, fields, &driver};
    next_ = (next_ + 1) % kEntries;
  }

 private:
  static constexpr std::size_t kEntries = 16;

  // Hashes all fields except the address.
  static std::uint64_t hash_of(const TensorMapFields& f) {
    std::uint64_t hash = f.box[0] ^ (std::uint64_t{f.box[1]} << 32);
    const auto add = [&hash](std::uint64_t x) {
      hash = (hash ^ x) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 32;
    };
    for (const std::uint64_t n : f.shape) add(n);
    for (const std::uint64_t n : f.stride_bytes) add(n);
    return hash;
  }

  std::array<std::uint64_t, kEntries> hashes_{};
  std::array<Entry, kEntries> entries_{};
  std::size_t next_ = 0;
};

}  // namespace

bool tma_can_address(const ConstTensor& t) {
  if (reinterpret_cast<std::uintptr_t>(t.data) % kAlignment != 0) return false;
  for (std::size_t i = 0; i < 3; ++i) {
    const std::uint64_t bytes = stride_bytes(t, i);
    if (t.shape[i] > 1 && (bytes % kAlignment != 0 || bytes == 0 || bytes >= kLongestStride))
      return false;
  }
  return true;
}

TensorMapFields row_boxes(const ConstTensor& t, int box_rows, int box_columns) {
  TensorMapFields f;
  f.address = t.data;
  f.type = size_bytes(t.dtype) == 1 ? cuda::TensorMapType::u8
           : t.dtype == DType::f32  ? cuda::TensorMapType::f32
           : t.dtype == DType::bf16 ? cuda::TensorMapType::bf16
                                    : cuda::TensorMapType::f16;
  for (std::size_t i = 0; i < 4; ++i) f.shape[i] = static_cast<std::uint64_t>(t.shape[3 - i]);
  // The stride of a dimension of size 1 is unused and may be anything, but the driver checks it.
  for (std::size_t i = 0; i < 3; ++i)
    f.stride_bytes[i] = t.shape[2 - i] > 1 ? stride_bytes(t, 2 - i) : kAlignment;
  f.box = {static_cast<std::uint32_t>(box_columns), static_cast<std::uint32_t>(box_rows), 1, 1};
  const auto bytes = static_cast<std::size_t>(box_columns) * size_bytes(t.dtype);
  f.swizzle = bytes == 128  ? cuda::TensorMapSwizzle::bytes_128
              : bytes == 64 ? cuda::TensorMapSwizzle::bytes_64
                            : cuda::TensorMapSwizzle::bytes_32;
  return f;
}

Status encode(const Driver& driver, const TensorMapFields& f, ptx::TensorMap& map) {
  static_assert(sizeof(ptx::TensorMap) == sizeof(cuda::TensorMap) &&
                alignof(ptx::TensorMap) == alignof(cuda::TensorMap));
  if (driver.tensor_map_encode_tiled == nullptr)
    return unsupported("driver", "without cuTensorMapEncodeTiled", "drivers of CUDA 12 and later");
  constexpr std::array<std::uint32_t, 4> kEveryElement = {1, 1, 1, 1};
  const cuda::Error error = driver.tensor_map_encode_tiled(
      reinterpret_cast<cuda::TensorMap*>(&map), f.type, 4, const_cast<void*>(f.address),
      f.shape.data(), f.stride_bytes.data(), f.box.data(), kEveryElement.data(),
      cuda::TensorMapInterleave::none, f.swizzle, cuda::TensorMapL2Promotion::bytes_128,
      cuda::TensorMapFill::zeros);
  if (error == cuda::kSuccess) return {};
  // The driver does not say which field is wrong, so the message lists them.
  return driver.status(
      error, fmt::format("cuTensorMapEncodeTiled(shape {}, stride_bytes {}, box {}, address {})",
                         fmt::join(f.shape, "x"), fmt::join(f.stride_bytes, ","),
                         fmt::join(f.box, "x"), fmt::ptr(f.address)));
}

Status move_map(const Driver& driver, const void* address, ptx::TensorMap& map) {
  OCTAVO_GPU_TRY(driver,
                 driver.tensor_map_replace_address(reinterpret_cast<cuda::TensorMap*>(&map),
                                                   const_cast<void*>(address)),
                 "cuTensorMapReplaceAddress");
  return {};
}

Status encode_again(const Driver& driver, const TensorMapFields& f, ptx::TensorMap& map) {
  thread_local RecentMaps recent;
  if (const RecentMaps::Entry* const found = recent.find(driver, f)) {
    map = found->map;
    return found->fields.address == f.address ? Status() : move_map(driver, f.address, map);
  }
  OCTAVO_RETURN_IF_ERROR(encode(driver, f, map));
  if (driver.tensor_map_replace_address != nullptr) recent.add(driver, f, map);
  return {};
}

}  // namespace octavo
