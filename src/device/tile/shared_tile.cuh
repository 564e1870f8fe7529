// SPDX-License-Identifier: Apache-2.0
// A tile of rows in shared memory, swizzled so that ldmatrix and 16-byte accesses have no bank
// conflicts, whatever the row length.
//
// A row is kChunks chunks of 16 bytes; eight chunks fill the 32 banks. ldmatrix reads the same
// chunk of eight rows: row r's chunk c starts at bank group (r * kChunks + c) mod 8, and with
// g = gcd(kChunks, 8) the groups repeat every 8/g rows. Chunk c of row r is stored at
// c ^ ((r / (8/g)) % g), which spreads the repeats over the g groups that are left.
#pragma once

#include "device/ptx/memory.cuh"
#include "device/ptx/target.cuh"

namespace octavo {

template <int kRowBytes>
struct SharedTile {
  static_assert(kRowBytes % 16 == 0, "rows are whole 16-byte chunks");
  static constexpr u32 kChunks = kRowBytes / 16;
  static constexpr u32 kGroups = kChunks % 8 == 0   ? 8
                                 : kChunks % 4 == 0 ? 4
                                 : kChunks % 2 == 0 ? 2
                                                    : 1;

  u32 base = 0;

  // Unsigned throughout: the compiler must see that adding a multiple of 8 rows does not change the
  // swizzle, so that an unrolled loop addresses its tiles by constant offsets from one register
  // (signed: 60 registers more, and spills).
  OCTAVO_DEVICE u32 chunk_address(u32 row, u32 chunk) const {
    const u32 swizzled = chunk ^ (row / (8 / kGroups) % kGroups);
    return base + row * kRowBytes + swizzled * 16;
  }
  OCTAVO_DEVICE u32 byte_address(u32 row, u32 byte) const {
    return chunk_address(row, byte / 16) + byte % 16;
  }
};

// The address that one lane reads for ldmatrix, from which it reaches the others by constants. A
// swizzled chunk is an XOR, so moving to another chunk is one XOR with a constant and needs no
// further register. Rows are constant offsets.
template <int kRowBytes>
struct LaneAddress {
  using Tile = SharedTile<kRowBytes>;
  static constexpr bool kPowerOfTwo = (kRowBytes & (kRowBytes - 1)) == 0;

  u32 row_address;  // includes the chunk if the row length is a power of two
  u32 chunk_bytes;  // swizzled

  // `chunk` and the chunks of at() are combined by XOR.
  OCTAVO_DEVICE LaneAddress(const Tile& tile, u32 row, u32 chunk)
      : row_address(tile.base + row * kRowBytes),
        chunk_bytes((chunk ^ (row / (8 / Tile::kGroups) % Tile::kGroups)) * 16) {
    if (kPowerOfTwo) row_address |= chunk_bytes;
  }
  // `rows` and `chunk` are constants. Rows that are not a multiple of 8 have their swizzle in
  // `chunk`.
  OCTAVO_DEVICE u32 at(u32 rows, u32 chunk) const {
    const u32 address =
        kPowerOfTwo ? row_address ^ (chunk * 16) : row_address + (chunk_bytes ^ (chunk * 16));
    return address + rows * kRowBytes;
  }
};

// Rows of a tensor in global memory.
struct GlobalRows {
  const u8* data = nullptr;
  i64 stride_bytes = 0;
  i32 row_bytes = 0;  // valid bytes of a row
};

// One thread's share of copying blocks of kRows rows, one block after the other, into tiles. Rows
// and columns that do not exist become zeros, and their addresses are not read.
//
// With 16-byte chunks a thread keeps its column of the tile and copies every kRowsAtOnce-th row of
// a block. A chunk then costs an addition and a comparison; dividing the chunk's index cost 22
// instructions and a fifth of all that the kernel issued.
template <int kRows, int kThreads, int kRowBytes, bool kKeepInL2>
struct WideRowLoader {
  static constexpr u32 kRowChunks = kRowBytes / 16;  // of a row
  static constexpr u32 kRowsAtOnce = u32{kThreads} / kRowChunks;
  static constexpr bool kEven = kThreads % kRowChunks == 0 && kRows % kRowsAtOnce == 0;
  static_assert(kRowsAtOnce > 0, "a row has at most one chunk per thread");

  const u8* source;  // this thread's chunk of its first row in the next block
  u32 stride;        // in chunks: 32 bits, and a product with it, reach any row
  u32 row, byte;     // of this thread's chunk
  bool exists;       // false: the chunk is past the end of the row

  OCTAVO_DEVICE WideRowLoader(const GlobalRows& from, u32 thread)
      : stride(static_cast<u32>(from.stride_bytes / 16)),
        row(thread / kRowChunks),
        byte(thread % kRowChunks * 16),
        exists(static_cast<i32>(byte) < from.row_bytes) {
    source = from.data + row * from.stride_bytes + byte;
    if (!kEven && row >= kRowsAtOnce) row = kRows;  // idle: past the last whole set of rows
  }

  OCTAVO_DEVICE const u8* rows_on(u32 rows) const { return source + u64{stride} * (rows * 16); }

  OCTAVO_DEVICE void skip(u32 rows) { source = rows_on(rows); }
  // Begins at another column of the rows, which have `left` bytes from there on.
  OCTAVO_DEVICE void skip_columns(i32 bytes, i32 left) {
    source += bytes;
    exists = static_cast<i32>(byte) < left;
  }

  // Starts copying a block, of which `rows` rows exist, and advances to the next block.
  OCTAVO_DEVICE void load(const SharedTile<kRowBytes>& tile, i32 rows) {
    OCTAVO_UNROLL
    for (u32 i = 0; i < div_up(u32{kRows}, kRowsAtOnce); ++i) {
      const u32 r = row + i * kRowsAtOnce;
      if (!kEven && r >= kRows) continue;
      const u32 to = tile.byte_address(r, byte);
      const bool found = exists && static_cast<i32>(r) < rows;
      if constexpr (kKeepInL2)
        ptx::cp_async_16_hinted(to, rows_on(i * kRowsAtOnce), found, ptx::l2_evict_last());
      else
        ptx::cp_async_16(to, rows_on(i * kRowsAtOnce), found);
    }
    source = rows_on(kRows);
  }
};

// The same for rows whose addresses or lengths allow only accesses of kLoadBytes, 1 to 8; from 4
// bytes on copies are asynchronous.
template <int kRows, int kThreads, int kLoadBytes, int kRowBytes>
struct NarrowRowLoader {
  static constexpr u32 kRowLoads = kRowBytes / kLoadBytes;

  GlobalRows from;  // the next block
  u32 thread;

  OCTAVO_DEVICE NarrowRowLoader(const GlobalRows& rows, u32 this_thread)
      : from(rows), thread(this_thread) {}

  OCTAVO_DEVICE void skip(u32 rows) { from.data += rows * from.stride_bytes; }
  OCTAVO_DEVICE void skip_columns(i32 bytes, i32 left) {
    from.data += bytes;
    from.row_bytes = left;
  }

  OCTAVO_DEVICE void load(const SharedTile<kRowBytes>& tile, i32 rows) {
    // Not unrolled: the addresses of so many chunks would spill.
    for (u32 part = thread; part < kRows * kRowLoads; part += kThreads)
      load_part(tile, rows, part / kRowLoads, part % kRowLoads * kLoadBytes);
    from.data += kRows * from.stride_bytes;
  }
  OCTAVO_DEVICE void load_part(const SharedTile<kRowBytes>& tile, i32 rows, u32 row,
                               u32 byte) const {
    const bool exists = static_cast<i32>(row) < rows && static_cast<i32>(byte) < from.row_bytes;
    const u8* const source = from.data + row * from.stride_bytes + byte;
    const u32 to = tile.byte_address(row, byte);
    if constexpr (kLoadBytes >= 4) {
      ptx::cp_async_narrow<kLoadBytes>(to, source, exists);
    } else if constexpr (kLoadBytes == 2) {
      ptx::store_shared_b16(to, exists ? ptx::load_global_b16(source) : u16{0});
    } else {
      ptx::store_shared_b8(to, exists ? ptx::load_global_b8(source) : u8{0});
    }
  }
};

template <int kRows, int kThreads, int kLoadBytes, int kRowBytes, bool kKeepInL2>
struct RowLoaderFor {
  using Type = NarrowRowLoader<kRows, kThreads, kLoadBytes, kRowBytes>;
};
template <int kRows, int kThreads, int kRowBytes, bool kKeepInL2>
struct RowLoaderFor<kRows, kThreads, 16, kRowBytes, kKeepInL2> {
  using Type = WideRowLoader<kRows, kThreads, kRowBytes, kKeepInL2>;
};
// kLoadBytes: the widest access that every row's address and length allow.
// kKeepInL2: loads use the evict_last policy.
template <int kRows, int kThreads, int kLoadBytes, int kRowBytes, bool kKeepInL2 = false>
using RowLoader = typename RowLoaderFor<kRows, kThreads, kLoadBytes, kRowBytes, kKeepInL2>::Type;

}  // namespace octavo
