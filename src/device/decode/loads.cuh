// SPDX-License-Identifier: Apache-2.0
// Loads of the decode kernel: Q into registers, K and V (and their scales) into shared memory.
#pragma once

#include "device/core/score_rows.cuh"
#include "device/decode/geometry.cuh"
#include "device/decode/policies.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/vector_memory.cuh"

namespace octavo::decode {

template <class G>
struct Loads {
  using Thread = typename G::Thread;
  static constexpr DecodeConfig C = G::C;

  // Loads the query rows of a work tile as A operands. Rows and columns that do not exist become
  // zeros.
  static OCTAVO_DEVICE void load_q(typename G::QFragments& q, const Params& p, const WorkTile& work,
                                   const Thread& thread) {
    constexpr int kBytes = element_bytes(C.element);
    const i32 lane_column = static_cast<i32>(G::Operands::q_column(0, 0, thread.lane));
    OCTAVO_UNROLL
    for (int m = 0; m < G::kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const i32 row = thread.row(m, r);
        const bool exists = row < work.rows;
        const i32 safe = exists ? row : 0;
        const u8* const from =
            static_cast<const u8*>(p.q) +
            (work.sequence * p.q_strides.batch + work.head(p, safe) * p.q_strides.head +
             work.token(p, safe) * p.q_strides.row + lane_column) *
                kBytes;
        OCTAVO_UNROLL
        for (int step = 0; step < G::kQkSteps; ++step) {
          OCTAVO_UNROLL
          for (int part = 0; part < 2; ++part) {
            const int column = static_cast<int>(G::Operands::q_column(step, part, 0));
            const bool valid = exists && lane_column + column < p.head_dim;
            q.a[m][step].r[part * 2 + r] = valid ? ptx::load_global_b32(from + column * kBytes) : 0;
          }
        }
        if constexpr (G::kConvertsQ) NumericsOf<G>::convert_row(q, m, r, thread.lane);
      }
    }
  }

  // The addresses where the keys and values of a sequence and KV head begin. In a paged cache they
  // are those of the head in page 0.
  struct KvHead {
    const u8 *k, *v;
    typename NumericsOf<G>::KvScales scales;

    OCTAVO_DEVICE KvHead(const Params& p, const Cursor& at) : scales(p, at) {
      constexpr int kBytes = element_bytes(C.kv);
      const i64 batch = p.paging.table == nullptr ? at.sequence : 0;
      const auto head = [&](const void* data, const Strides& strides) {
        return static_cast<const u8*>(data) +
               (batch * strides.batch + at.kv_head * strides.head) * kBytes;
      };
      k = head(p.k, p.k_strides);
      v = head(p.v, p.v_strides);
    }
  };

  // The pages of this warp's keys of a KV tile, if the cache is paged. Sixteen keys never cross a
  // page.
  struct Pages {
    i32 page[C.block_n / 16];

    OCTAVO_DEVICE void load(const Params& p, const Cursor& at, const Thread& thread) {
      if (p.paging.table == nullptr) return;
      OCTAVO_UNROLL
      for (int i = 0; i < C.block_n / 16; ++i) {
        const i32 key = first_key(at, thread) + i * 16;
        page[i] = key < at.keys.span.seqlen_kv
                      ? page_of(p, at.sequence, p.paging.by_page_size.quotient(key))
                      : 0;
      }
    }
  };

  static OCTAVO_DEVICE i32 first_key(const Cursor& at, const Thread& thread) {
    return at.keys.range.begin + at.kv_tile * tile_keys(C) +
           static_cast<i32>(thread.warp) * C.block_n;
  }

  // Starts copying this warp's keys of a KV tile into a stage. Keys past the end of the sequence
  // become zeros, and their addresses are not read.
  static OCTAVO_DEVICE void load_kv(const Params& p, const Cursor& at, const KvHead& head,
                                    const Pages& pages, const Thread& thread, int stage) {
    constexpr int kBytes = element_bytes(C.kv);
    const u32 in_tile = thread.warp * C.block_n;
    const i32 first = first_key(at, thread);
    OCTAVO_UNROLL
    for (int group = 0; group < C.block_n; group += 16) {
      const i32 key = first + group;
      const i32 rows = at.keys.span.seqlen_kv - key;
      const u32 to = in_tile + static_cast<u32>(group);
      i64 page = 0;
      i32 row = at.keys.span.kv_begin + key;
      if (p.paging.table != nullptr) {
        const i32 index = p.paging.by_page_size.quotient(key);
        row = key - index * p.paging.page_size;
        page = pages.page[group / 16];
      }
      copy_rows(G::k_tile(stage), to, head.k + page * p.k_strides.batch * kBytes, p.k_row_bytes,
                row, rows, p.head_dim, thread.lane);
      copy_rows(G::v_tile(stage), to, head.v + page * p.v_strides.batch * kBytes, p.v_row_bytes,
                row, rows, p.head_dim, thread.lane);
      head.scales.copy(p, page, stage, to, row, rows, thread.lane);
    }
  }

 private:
  static OCTAVO_DEVICE i32 page_of(const Params& p, i32 sequence, i32 index) {
    const i32 page = ptx::load_global_i32(p.paging.table + sequence * p.paging.stride + index);
    return min_of(max_of(page, 0), p.paging.pages - 1);
  }

  // Copies sixteen rows of a head, beginning with row `row`. Only the first `rows` of them exist.
  static OCTAVO_DEVICE void copy_rows(const typename G::Tile& tile, u32 to, const u8* head,
                                      u32 row_bytes, i32 row, i32 rows, i32 head_dim, u32 lane) {
    constexpr u32 kChunks = G::Tile::kChunks;
    constexpr u32 kRowsAtOnce = 32 / kChunks;
    static_assert(kRowsAtOnce > 0, "a row has at most one chunk per lane");
    const u32 lane_row = lane / kChunks;
    if (32 % kChunks != 0 && lane_row >= kRowsAtOnce) return;
    const u32 byte = lane % kChunks * 16;
    const bool in_row = static_cast<i32>(byte) < kv_bytes(C, head_dim);
    const u8* const from = head + u64{row_bytes} * (static_cast<u32>(row) + lane_row) + byte;
    OCTAVO_UNROLL
    for (u32 i = 0; i < div_up(16u, kRowsAtOnce); ++i) {
      const u32 r = lane_row + i * kRowsAtOnce;
      if (16 % kRowsAtOnce != 0 && r >= 16) continue;
      ptx::cp_async_16(tile.byte_address(to + r, byte), from + u64{row_bytes} * (i * kRowsAtOnce),
                       in_row && static_cast<i32>(r) < rows);
    }
  }
};

}  // namespace octavo::decode
