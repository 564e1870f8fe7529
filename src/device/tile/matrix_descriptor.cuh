// SPDX-License-Identifier: Apache-2.0
// Shared-memory matrix descriptors for wgmma.
//
// Tiles are rows of swizzled atoms: eight rows (K-major) or eight keys (MN-major) of 128, 64 or 32
// bytes, as TMA writes them, and lie on a 1024-byte boundary.
#pragma once

#include "config/portable.h"

namespace octavo {

enum class Swizzle : int { none = 0, b128 = 1, b64 = 2, b32 = 3 };  // the hardware's encoding

OCTAVO_HD constexpr u32 swizzle_bytes(Swizzle s) {
  return s == Swizzle::b128 ? 128 : s == Swizzle::b64 ? 64 : s == Swizzle::b32 ? 32 : 16;
}
OCTAVO_HD constexpr Swizzle swizzle_of(u32 bytes) {
  return bytes == 128 ? Swizzle::b128 : bytes == 64 ? Swizzle::b64 : Swizzle::b32;
}

// The swizzled offset of byte `offset` of a tile: the row index XORs the index of its 16-byte chunk
// within the swizzle atom.
OCTAVO_HD constexpr u32 swizzled(Swizzle s, u32 offset) {
  const u32 chunks = swizzle_bytes(s) / 16;
  return offset ^ (((offset >> 7) & (chunks - 1)) << 4);
}

struct MatrixDescriptor {
  u32 address = 0;        // of the first byte, in shared memory
  u32 leading_bytes = 0;  // MN-major: distance to the next atom of columns; K-major: unused
  u32 stride_bytes = 0;   // distance to the next eight rows, or keys
  Swizzle swizzle = Swizzle::b128;

  // Bits 0-13 address / 16, 16-29 leading / 16, 32-45 stride / 16, 49-51 base offset (0: atoms are
  // aligned), 62-63 swizzle.
  OCTAVO_HD constexpr u64 encoded() const {
    return static_cast<u64>((address & 0x3ffff) >> 4) |
           static_cast<u64>((leading_bytes & 0x3ffff) >> 4) << 16 |
           static_cast<u64>((stride_bytes & 0x3ffff) >> 4) << 32 |
           static_cast<u64>(static_cast<u32>(swizzle)) << 62;
  }
};

// K-major: Q and K as they are, V transposed in memory. One atom's width of columns.
OCTAVO_HD constexpr u64 k_major(u32 address, Swizzle s = Swizzle::b128) {
  return MatrixDescriptor{address, 16, 8 * swizzle_bytes(s), s}.encoded();
}
// MN-major, 16-bit elements: V as it is. `next_columns` is the distance in bytes from one block of
// columns (64 at 128 bytes) to the next.
OCTAVO_HD constexpr u64 mn_major(u32 address, u32 next_columns, Swizzle s = Swizzle::b128) {
  return MatrixDescriptor{address, next_columns, 8 * swizzle_bytes(s), s}.encoded();
}
// `base`, a descriptor of address 0, moved to an address: only the low half changes, and it does
// not carry, so 32-bit sums suffice.
OCTAVO_HD constexpr u64 at_address(u64 base, u32 address) {
  return base >> 32 << 32 | (static_cast<u32>(base) + (address >> 4));
}
// The descriptor advanced by `bytes`, a multiple of 16 that does not carry out of bits 0-13.
OCTAVO_HD constexpr u64 advanced(u64 descriptor, u32 bytes) { return descriptor + (bytes >> 4); }

// Rows `bytes` further on while the next block of columns stays in place, so the leading distance
// shrinks as the address grows. Only the low half changes, and it does not carry.
OCTAVO_HD constexpr u64 advanced_from_next(u64 descriptor, u32 bytes) {
  const u32 low = static_cast<u32>(descriptor) + (bytes >> 4) - (bytes >> 4 << 16);
  return descriptor >> 32 << 32 | low;
}

}  // namespace octavo
