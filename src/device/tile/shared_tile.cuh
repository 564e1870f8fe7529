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

// Where one lane reads for ldmatrix, and by which constants it goes on from there. A swizzled chunk
// is an exclusive or, so a step to another chunk is one too, with a constant: one instruction, and
// no register but this. Rows are constant offsets.
template <int kRowBytes>
struct LaneAddress {
  using Tile = SharedTile<kRowBytes>;
  static constexpr bool kPowerOfTwo = (kRowBytes & (kRowBytes - 1)) == 0;

  u32 row_address;  // with the chunk where rows are a power of two
  u32 chunk_bytes;  // swizzled

  // `chunk` has no bit in common with those that are added later.
  OCTAVO_DEVICE LaneAddress(const Tile& tile, u32 row, u32 chunk)
      : row_address(tile.base + row * kRowBytes),
        chunk_bytes((chunk ^ (row / (8 / Tile::kGroups) % Tile::kGroups)) * 16) {
    if (kPowerOfTwo) row_address |= chunk_bytes;
  }
  // `rows`, a multiple of 8, and `chunk` are constants.
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
  i32 row_bytes = 0;  // of a row that exist
};

// One thread's share of copying blocks of kRows rows, one block after the other, into tiles. What
// does not exist arrives as zeros; its address, which may lie anywhere, is not read.
//
// With 16-byte pieces a thread keeps its column of the tile, and every kRowsAtOnce-th row of a
// block is its own: a piece then costs an addition and a comparison, where dividing the piece's
// number cost 22 instructions and a fifth of all that the kernel issued.
template <int kRows, int kThreads, int kRowBytes, bool kKeepInL2>
struct WideRowLoader {
  static constexpr u32 kPieces = kRowBytes / 16;  // of a row
  static constexpr u32 kRowsAtOnce = u32{kThreads} / kPieces;
  static constexpr bool kEven = kThreads % kPieces == 0 && kRows % kRowsAtOnce == 0;
  static_assert(kRowsAtOnce > 0, "a row has at most one piece per thread");

  const u8* source;  // this thread's piece of its first row in the next block
  u32 stride;        // in pieces: 32 bits, and a product with it, reach any row
  u32 row, byte;     // of this thread's piece
  bool exists;       // else it lies past the end of the rows

  OCTAVO_DEVICE WideRowLoader(const GlobalRows& from, u32 thread)
      : stride(static_cast<u32>(from.stride_bytes / 16)),
        row(thread / kPieces),
        byte(thread % kPieces * 16),
        exists(static_cast<i32>(byte) < from.row_bytes) {
    source = from.data + row * from.stride_bytes + byte;
    if (!kEven && row >= kRowsAtOnce) row = kRows;  // past the last whole set of rows: idle
  }

  OCTAVO_DEVICE const u8* rows_on(u32 rows) const { return source + u64{stride} * (rows * 16); }

  // Starts copying a block, of which `rows` rows exist, and moves on to the next.
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

// The same for rows whose addresses or lengths allow only kLoadBytes at once, 1 to 8; from 4 on
// copies are asynchronous.
template <int kRows, int kThreads, int kLoadBytes, int kRowBytes>
struct NarrowRowLoader {
  static constexpr u32 kPieces = kRowBytes / kLoadBytes;

  GlobalRows from;  // the next block
  u32 thread;

  OCTAVO_DEVICE NarrowRowLoader(const GlobalRows& rows, u32 this_thread)
      : from(rows), thread(this_thread) {}

  OCTAVO_DEVICE void load(const SharedTile<kRowBytes>& tile, i32 rows) {
    // Pieces are many: unrolled, their addresses alone would spill.
    for (u32 piece = thread; piece < kRows * kPieces; piece += kThreads)
      load_piece(tile, rows, piece / kPieces, piece % kPieces * kLoadBytes);
    from.data += kRows * from.stride_bytes;
  }
  OCTAVO_DEVICE void load_piece(const SharedTile<kRowBytes>& tile, i32 rows, u32 row,
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
// kLoadBytes: the widest access that divides every row's address and length.
// kKeepInL2: what is read leaves L2 last.
template <int kRows, int kThreads, int kLoadBytes, int kRowBytes, bool kKeepInL2 = false>
using RowLoader = typename RowLoaderFor<kRows, kThreads, kLoadBytes, kRowBytes, kKeepInL2>::Type;

}  // namespace octavo
