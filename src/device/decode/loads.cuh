// SPDX-License-Identifier: Apache-2.0
// Loads of the decode kernel: Q into registers, K and V (and their scales) into shared memory.
#pragma once

#include "device/core/score_rows.cuh"
#include "device/decode/geometry.cuh"
#include "device/decode/policies.cuh"
#include "device/ptx/fragment.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/vector_memory.cuh"

namespace octavo::decode {

template <class G>
struct Loads {
  using Thread = typename G::Thread;
  static constexpr DecodeConfig C = G::C;

  // Loads the query rows of a work tile as A operands. Rows and columns that do not exist become
  // zeros. Eight rows are the first half of the A operands of sixteen, and the B operands of the
  // transposed product.
  static OCTAVO_DEVICE void load_q(typename G::QFragments& q, const Params& p, const WorkTile& work,
                                   const Thread& thread) {
    constexpr int kBytes = element_bytes(C.element);
    const i32 lane_column = static_cast<i32>(G::Operands::q_column(0, 0, thread.lane));
    OCTAVO_UNROLL
    for (int m = 0; m < G::kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < (G::kTransposed ? 1 : 2); ++r) {
        const i32 row = thread.whole_row(m, r);
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

  // Where this lane's copies of a sequence and KV head begin: the first row of keys and values that
  // the lane copies, in a paged cache of the head in page 0.
  struct KvHead {
    const u8 *k, *v;
    const i32* pages;  // of the sequence; null: not paged
    typename NumericsOf<G>::KvScales scales;

    OCTAVO_DEVICE KvHead(const Params& p, const Cursor& at, const Thread& thread) : scales(p, at) {
      constexpr int kBytes = element_bytes(C.kv);
      const bool paged = p.paging.table != nullptr;
      const auto lane_of = [&](const void* data, const Strides& strides, u32 row_bytes) {
        return static_cast<const u8*>(data) +
               ((paged ? 0 : at.sequence) * strides.batch + at.kv_head * strides.head) * kBytes +
               u64{row_bytes} * row_of(thread.lane) + byte_of(thread.lane);
      };
      k = lane_of(p.k, p.k_strides, p.k_row_bytes);
      v = lane_of(p.v, p.v_strides, p.v_row_bytes);
      pages = paged ? p.paging.table + at.sequence * p.paging.stride : nullptr;
    }
  };

  // Where this warp's keys of KV tiles are. Sixteen keys never cross a page, so each sixteen have
  // one entry of the page table, and each lane keeps one: those of the next kTiles KV tiles of the
  // work tile are read by one load. Its result is first used a round later, behind the wait for
  // copies, but for the first of a CTA. A load for every KV tile would wait behind the copies that
  // are in flight.
  struct Rows {
    static constexpr u32 kGroups = C.block_n / 16;
    static constexpr u32 kTiles = 32 / kGroups;
    i32 lane_page;          // 0 if the cache is not paged
    i32 lane_row;           // in the page, or in the sequence if the cache is not paged
    u32 tile = kTiles - 1;  // which of the kTiles; the last one, so that the first find() reads
    i32 left;               // keys of the sequence, from the warp's first on

    // Finds the rows of a KV tile, which follows the one that was found before.
    OCTAVO_DEVICE void find(const Params& p, const Cursor& at, const KvHead& head,
                            const Thread& thread) {
      const i32 first = at.keys.range.begin + at.kv_tile * tile_keys(C) +
                        static_cast<i32>(thread.warp) * C.block_n;
      left = at.keys.span.seqlen_kv - first;
      if (++tile < kTiles && at.kv_tile != 0) return;
      tile = 0;
      look_up(p, at, head, first, thread.lane);
    }

    // The page and row of sixteen keys of the warp's block. Page indices are never trusted.
    struct Place {
      u32 page;
      i32 row;
    };
    OCTAVO_DEVICE Place place(const Params& p, u32 group) const {
      const u32 lane = tile * kGroups + group;
      const i32 page = ptx::shuffle_from(lane_page, lane);
      return {static_cast<u32>(min_of(max_of(page, 0), p.paging.last_page)),
              ptx::shuffle_from(lane_row, lane)};
    }

   private:
    OCTAVO_DEVICE void look_up(const Params& p, const Cursor& at, const KvHead& head, i32 first,
                               u32 lane) {
      const i32 ahead =
          static_cast<i32>(lane / kGroups) * tile_keys(C) + static_cast<i32>(lane % kGroups * 16);
      lane_page = lane_row = 0;
      // Entries behind the end of the sequence are not read.
      if (ahead >= left) return;
      const i32 key = first + ahead;
      lane_row = at.keys.span.kv_begin + key;
      if (head.pages == nullptr) return;
      const i32 index = p.paging.by_page_size.quotient(key);
      lane_row = key - index * p.paging.page_size;
      lane_page = ptx::load_global_i32(head.pages + index);
    }
  };

  // Starts copying this warp's keys of a KV tile into a stage. Keys past the end of the sequence
  // become zeros, and their addresses are not read.
  static OCTAVO_DEVICE void load_kv(const Params& p, const KvHead& head, const Rows& rows,
                                    const Thread& thread, int stage) {
    const u32 in_tile = thread.warp * C.block_n;
    const bool in_row = static_cast<i32>(byte_of(thread.lane)) < kv_bytes(C, p.head_dim);
    const i32 lane_left = in_row ? rows.left - static_cast<i32>(row_of(thread.lane)) : 0;
    // One address of the lane, from which the others follow by constants: `in_tile` is a multiple
    // of sixteen rows, which does not change the swizzle.
    const LaneAddress<row_bytes(C)> to({G::k_tile(stage).base + in_tile * row_bytes(C)},
                                       row_of(thread.lane), thread.lane % kChunks);
    const u8 *k = nullptr, *v = nullptr;
    OCTAVO_UNROLL
    for (u32 i = 0; i < Rows::kGroups; ++i) {
      if (i > 0 && p.paging.has_whole_blocks) {
        k += u64{p.k_row_bytes} * 16;
        v += u64{p.v_row_bytes} * 16;
      } else {
        const typename Rows::Place place = rows.place(p, i);
        k = address_of(head.k, place, p.paging.k_page_bytes, p.k_row_bytes);
        v = address_of(head.v, place, p.paging.v_page_bytes, p.v_row_bytes);
      }
      const u32 group = i * 16 * row_bytes(C);
      const i32 group_left = lane_left - static_cast<i32>(i * 16);
      copy_rows(to, group, k, p.k_row_bytes, group_left, thread.lane);
      copy_rows(to, group + tile_bytes(C), v, p.v_row_bytes, group_left, thread.lane);
    }
    head.scales.copy(p, rows, stage, in_tile, thread.lane);
  }

 private:
  // A lane copies one chunk of every kRowsAtOnce-th row.
  static constexpr u32 kChunks = G::Tile::kChunks;
  static constexpr u32 kRowsAtOnce = 32 / kChunks;
  static_assert(kRowsAtOnce > 0, "a row has at most one chunk per lane");
  static OCTAVO_DEVICE u32 row_of(u32 lane) { return lane / kChunks; }
  static OCTAVO_DEVICE u32 byte_of(u32 lane) { return lane % kChunks * 16; }
  static OCTAVO_DEVICE const u8* address_of(const u8* head, const typename Rows::Place& place,
                                            u64 page_bytes, u32 row_bytes) {
    return head + place.page * page_bytes + u64{row_bytes} * static_cast<u32>(place.row);
  }

  // Copies sixteen rows from `from` on, the lane's chunk of its first row, to `offset` bytes behind
  // `to`. `left`: how many rows exist from the lane's first one on.
  static OCTAVO_DEVICE void copy_rows(const LaneAddress<row_bytes(C)>& to, u32 offset,
                                      const u8* from, u32 row_bytes, i32 left, u32 lane) {
    if (32 % kChunks != 0 && row_of(lane) >= kRowsAtOnce) return;
    OCTAVO_UNROLL
    for (u32 first = 0; first < 16; first += kRowsAtOnce) {
      if (16 % kRowsAtOnce != 0 && row_of(lane) + first >= 16) continue;
      ptx::cp_async_16(shared_address(to, first, lane) + offset, from + u64{row_bytes} * first,
                       static_cast<i32>(first) < left);
    }
  }
  // The address of the lane's chunk in row `first` after its first one. If kRowsAtOnce is a power
  // of two, the lane's row and `first` have no bit in common, and their swizzles are one XOR after
  // the other.
  static OCTAVO_DEVICE u32 shared_address(const LaneAddress<row_bytes(C)>& to, u32 first,
                                          u32 lane) {
    if constexpr ((kRowsAtOnce & (kRowsAtOnce - 1)) != 0) {
      const typename G::Tile tile{to.row_address - row_of(lane) * row_bytes(C)};
      return tile.byte_address(row_of(lane) + first, byte_of(lane));
    } else {
      constexpr u32 kGroups = G::Tile::kGroups;
      return to.at(first, first / (8 / kGroups) % kGroups);
    }
  }
};

}  // namespace octavo::decode
