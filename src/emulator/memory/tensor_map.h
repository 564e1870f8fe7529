// SPDX-License-Identifier: Apache-2.0
// The emulator's tensor map. The real one is opaque; this one has its own layout in the same 128
// bytes.
#pragma once

#include <array>
#include <cstdint>

#include "device/ptx/tma.cuh"

namespace octavo::emulator {

enum class MapType : std::uint8_t { u8, u16, u32, f16, bf16, f32 };
constexpr std::uint32_t map_type_bytes(MapType type) {
  return type == MapType::u8 ? 1 : type == MapType::u32 || type == MapType::f32 ? 4 : 2;
}

struct TensorMapFields {
  const void* data = nullptr;
  MapType type = MapType::f16;
  std::uint32_t rank = 1;
  std::array<std::uint32_t, 5> shape{1, 1, 1, 1, 1};  // innermost first
  std::array<std::uint64_t, 4> stride_bytes{};        // of dimensions 1 to 4
  std::array<std::uint16_t, 5> box{1, 1, 1, 1, 1};
  std::uint16_t swizzle_bytes = 0;  // 0, 32, 64, 128
  bool nan_fill = false;
};

// The reason why the real encoder would refuse these fields; null if it would not.
const char* refuse(const TensorMapFields& fields);
ptx::TensorMap encode(const TensorMapFields& fields);
// Returns false if the map was not encoded by the emulator.
bool decode(const ptx::TensorMap& map, TensorMapFields& fields);

// The swizzled address of a byte of a tile: the row index XORs the index of its 16-byte chunk; both
// come from the address.
constexpr std::uint32_t swizzled(std::uint32_t address, std::uint32_t swizzle_bytes) {
  const std::uint32_t chunks = swizzle_bytes / 16;  // 8, 4, 2 or 0
  return chunks == 0 ? address : address ^ ((address >> 7) & (chunks - 1)) << 4;
}

}  // namespace octavo::emulator
