// What the decode kernel loads: Q into registers, K and V (and their scales) into shared memory.
#pragma once

#include "device/decode/geometry.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/vector_memory.cuh"

namespace octavo::decode {

template <class G>
struct Loads {
  using Thread = typename G::Thread;
  static constexpr DecodeConfig C = G::C;

  // The query rows of a unit as A operands. Rows and columns that do not exist are zeros.
  static OCTAVO_DEVICE void load_q(typename G::QFragments& q, const Params& p, const Unit& unit,
                                   const Thread& thread) {
    constexpr int kBytes = element_bytes(C.element);
    OCTAVO_UNROLL
    for (int m = 0; m < G::kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const i32 row = thread.row(m, r);
        const bool exists = row < unit.rows;
        const i32 safe = exists ? row : 0;
        const u8* const from =
            static_cast<const u8*>(p.q) +
            (unit.sequence * p.q_strides.batch + unit.head(p, safe) * p.q_strides.head +
             unit.token(p, safe) * p.q_strides.row) *
                kBytes;
        OCTAVO_UNROLL
        for (int step = 0; step < G::kQkSteps; ++step) {
          OCTAVO_UNROLL
          for (int part = 0; part < 2; ++part) {
            const u32 column = G::Operands::q_column(step, part, thread.lane);
            const bool valid = exists && static_cast<i32>(column) < p.head_dim;
            q.a[m][step].r[part * 2 + r] = valid ? ptx::load_global_b32(from + column * kBytes) : 0;
          }
        }
      }
    }
  }

  // Starts copying this warp's keys of a tile into a stage. Keys past the end of the sequence
  // become zeros, and their addresses are not read.
  static OCTAVO_DEVICE void load_kv(const Params& p, const Cursor& at, const Thread& thread,
                                    int stage) {
    const i32 kv_head = at.unit / p.row_tiles;
    const u32 in_tile = thread.warp * C.block_n;
    const i32 first = at.keys.range.begin + at.tile * tile_keys(C) + static_cast<i32>(in_tile);
    // Sixteen keys never cross a page.
    OCTAVO_UNROLL
    for (int group = 0; group < C.block_n; group += 16) {
      const i32 key = first + group;
      const i32 rows = at.keys.span.seqlen_kv - key;
      i64 batch = at.sequence;
      i32 row = at.keys.span.kv_begin + key;
      if (p.paging.table != nullptr) {
        row = key % p.paging.page_size;
        batch = rows > 0 ? page_of(p, at.sequence, key / p.paging.page_size) : 0;
      }
      const u32 to = in_tile + static_cast<u32>(group);
      copy_rows(G::k_tile(stage), to, p.k, p.k_strides, batch, kv_head, row, rows, p.head_dim,
                thread.lane);
      copy_rows(G::v_tile(stage), to, p.v, p.v_strides, batch, kv_head, row, rows, p.head_dim,
                thread.lane);
      if constexpr (G::k8bitKv) {
        if (p.k_scale_per_key)
          copy_scales(G::k_scale(stage, to), p.k_scales, batch, kv_head, row, rows, thread.lane);
        if (p.v_scale_per_key)
          copy_scales(G::v_scale(stage, to), p.v_scales, batch, kv_head, row, rows, thread.lane);
      }
    }
  }

 private:
  static OCTAVO_DEVICE i32 page_of(const Params& p, i32 sequence, i32 index) {
    const i32 page = ptx::load_global_i32(p.paging.table + sequence * p.paging.stride + index);
    return min_of(max_of(page, 0), p.paging.pages - 1);
  }

  // Sixteen rows of a head, of which `rows` exist, from row `row` on.
  static OCTAVO_DEVICE void copy_rows(const typename G::Tile& tile, u32 to, const void* data,
                                      const Strides& strides, i64 batch, i32 head, i32 row,
                                      i32 rows, i32 head_dim, u32 lane) {
    constexpr int kBytes = element_bytes(C.kv);
    constexpr u32 kChunks = G::Tile::kChunks;
    constexpr u32 kRowsAtOnce = 32 / kChunks;
    static_assert(kRowsAtOnce > 0, "a row has at most one chunk per lane");
    const u32 lane_row = lane / kChunks;
    const u32 byte = lane % kChunks * 16;
    const bool in_row = static_cast<i32>(byte) < head_dim * kBytes && lane_row < kRowsAtOnce;
    const u8* const from = static_cast<const u8*>(data) +
                           (batch * strides.batch + head * strides.head +
                            (row + static_cast<i64>(lane_row)) * strides.row) *
                               kBytes +
                           byte;
    OCTAVO_UNROLL
    for (u32 i = 0; i < div_up(16u, kRowsAtOnce); ++i) {
      const u32 r = lane_row + i * kRowsAtOnce;
      if (32 % kChunks != 0 && (lane_row >= kRowsAtOnce || r >= 16)) continue;
      ptx::cp_async_16(tile.byte_address(to + r, byte),
                       from + i * kRowsAtOnce * strides.row * kBytes,
                       in_row && static_cast<i32>(r) < rows);
    }
  }

  // The scales of sixteen keys; those of keys that do not exist become 0.
  static OCTAVO_DEVICE void copy_scales(u32 to, const ScaleParams& scales, i64 batch, i32 head,
                                        i32 row, i32 rows, u32 lane) {
    const i32 key = static_cast<i32>(lane % 16);
    const float* const from = scales.data + batch * scales.batch + head * scales.head +
                              static_cast<i64>((row + key) / scales.block_rows) * scales.stride;
    if (lane < 16) ptx::cp_async_narrow<4>(to + lane * 4, from, key < rows);
  }
};

}  // namespace octavo::decode
