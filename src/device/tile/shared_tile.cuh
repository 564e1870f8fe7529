// A tile of rows in shared memory, swizzled so that ldmatrix and 16-byte accesses meet no bank
// twice, whatever the row length.
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

  // Unsigned throughout: adding a multiple of 8 rows must visibly not change the swizzle, so that
  // an unrolled loop addresses its tiles by constant offsets from one register (signed: 60
  // registers more, and spills).
  OCTAVO_DEVICE u32 chunk_address(u32 row, u32 chunk) const {
    const u32 swizzled = chunk ^ (row / (8 / kGroups) % kGroups);
    return base + row * kRowBytes + swizzled * 16;
  }
  OCTAVO_DEVICE u32 byte_address(u32 row, u32 byte) const {
    return chunk_address(row, byte / 16) + byte % 16;
  }
};

// Rows of a tensor in global memory, of which the first `rows` and the first `row_bytes` of each
// exist; what lies beyond arrives as zeros.
struct GlobalRows {
  const u8* data = nullptr;
  i64 stride_bytes = 0;
  i32 rows = 0;
  i32 row_bytes = 0;
};

// Copies piece `piece` of a tile's rows, counted row after row in units of kLoadBytes.
template <int kLoadBytes, int kRowBytes>
OCTAVO_DEVICE void load_piece(const SharedTile<kRowBytes>& tile, const GlobalRows& from,
                              u32 piece) {
  constexpr u32 kPieces = kRowBytes / kLoadBytes;
  const u32 row = piece / kPieces;
  const u32 byte = piece % kPieces * kLoadBytes;
  const int valid = static_cast<int>(row) < from.rows
                        ? max_of(min_of(from.row_bytes - static_cast<int>(byte), kLoadBytes), 0)
                        : 0;
  const u8* const source = from.data + (valid > 0 ? row * from.stride_bytes + byte : 0);
  const u32 to = tile.byte_address(row, byte);
  if constexpr (kLoadBytes == 16) {
    ptx::cp_async_16(to, source, valid);
  } else if constexpr (kLoadBytes >= 4) {
    ptx::cp_async_narrow<kLoadBytes>(to, source, valid);
  } else if constexpr (kLoadBytes == 2) {
    ptx::store_shared_b16(to, valid > 0 ? ptx::load_global_b16(source) : u16{0});
  } else {
    ptx::store_shared_b8(to, valid > 0 ? ptx::load_global_b8(source) : u8{0});
  }
}

// Starts copying kRows rows into the tile, by all kThreads threads. kLoadBytes is the widest access
// the rows' addresses allow; from 4 bytes on it is asynchronous.
template <int kRows, int kThreads, int kLoadBytes, int kRowBytes>
OCTAVO_DEVICE void load_rows(const SharedTile<kRowBytes>& tile, const GlobalRows& from,
                             u32 thread) {
  constexpr u32 kTotal = kRows * (kRowBytes / kLoadBytes);
  if constexpr (kLoadBytes == 16) {
    OCTAVO_UNROLL
    for (u32 i = 0; i < div_up(kTotal, u32{kThreads}); ++i) {
      const u32 piece = i * kThreads + thread;
      if (kTotal % kThreads == 0 || piece < kTotal) load_piece<kLoadBytes>(tile, from, piece);
    }
  } else {
    // Narrow pieces are many: unrolled, their addresses alone would spill.
    for (u32 piece = thread; piece < kTotal; piece += kThreads)
      load_piece<kLoadBytes>(tile, from, piece);
  }
}

}  // namespace octavo
