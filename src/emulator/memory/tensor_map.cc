// SPDX-License-Identifier: Apache-2.0
#include "emulator/memory/tensor_map.h"

#include <cstring>

namespace octavo::emulator {
namespace {

constexpr std::uint32_t kMagic = 0x6f637461;
constexpr std::uint64_t kLongestStride = std::uint64_t{1} << 40;  // exclusive

struct Stored {
  std::uint32_t magic = kMagic;
  TensorMapFields fields;
};
static_assert(sizeof(Stored) <= sizeof(ptx::TensorMap));

}  // namespace

const char* refuse(const TensorMapFields& f) {
  if (reinterpret_cast<std::uintptr_t>(f.data) % 16 != 0) return "the base is not 16-byte aligned";
  if (f.rank < 1 || f.rank > 5) return "the rank is not 1 to 5";
  for (std::uint32_t i = 0; i < f.rank; ++i) {
    if (f.shape[i] == 0) return "a dimension is empty";
    if (f.box[i] == 0 || f.box[i] > 256) return "a side of the box is not 1 to 256";
    if (i > 0 && f.stride_bytes[i - 1] % 16 != 0) return "a stride is not a multiple of 16 bytes";
    if (i > 0 && f.stride_bytes[i - 1] >= kLongestStride) return "a stride is 2^40 bytes or more";
  }
  const std::uint32_t inner = f.box[0] * map_type_bytes(f.type);
  if (inner % 16 != 0) return "the box's rows are not multiples of 16 bytes";
  if (f.swizzle_bytes != 0 && inner > f.swizzle_bytes) return "the box's rows exceed the swizzle";
  return nullptr;
}

ptx::TensorMap encode(const TensorMapFields& fields) {
  const Stored stored{kMagic, fields};
  ptx::TensorMap map{};
  std::memcpy(map.opaque, &stored, sizeof stored);
  return map;
}

bool decode(const ptx::TensorMap& map, TensorMapFields& fields) {
  Stored stored;
  std::memcpy(&stored, map.opaque, sizeof stored);
  fields = stored.fields;
  return stored.magic == kMagic;
}

}  // namespace octavo::emulator
