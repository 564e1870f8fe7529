// SPDX-License-Identifier: Apache-2.0
// Rung 4, asynchronous copies: the next blocks of K and V are on their way while this one is
// computed.
//
// The new idea is the pipeline. Rung 3 waits for every block: its loads go through registers, and
// the tensor cores stand still for the latency of global memory. cp.async copies 16 bytes from
// global to shared memory without a register and without waiting. Three stages hold one block each:
// one is being computed, two are being filled.
//
//   block n - 1   computed ......|
//   block n       copied ........| computed ......|
//   block n + 1   copied .................| ......| computed
//   block n + 2                  | copied .................|
//                                ^ the one barrier: n has arrived, and n - 1 is used up
//
// A copy cannot transpose, so rows lie in shared memory as they are, without padding (16-byte
// chunks stay aligned), and two instructions make fragments of them: ldmatrix loads four 8 x 8
// matrices, and its transposing form those of V. Rows of 128 bytes would put the eight chunks that
// ldmatrix reads into the same banks: so chunk c of row r is stored at chunk c ^ (r % 8), the
// swizzle of tile/shared_tile.cuh.
//
//   shared memory   what                    bytes at head_dim 64
//   q               64 rows                 8192
//   k[3], v[3]      64 keys in each stage   8192 each
//
//   step of block n      makes sure that
//   cp_async_wait<1>     this thread's copies of block n have arrived; those of n + 1 may be in
//   flight cta_sync             so have those of the other threads, and all warps have used block n
//   - 1 cp_async_commit      block n + 2, into the stage of block n - 1, is a group to wait for
#pragma once

#include "device/ladder/fragments.cuh"
#include "device/ptx/mma.cuh"
#include "device/tile/shared_tile.cuh"

namespace octavo::ladder {

template <int kHeadDim>
struct AsyncCopies {
  static constexpr int kThreads = 128, kRows = 64, kKeys = 64, kStages = 3;
  static constexpr int kQkSteps = kHeadDim / 16, kPvSteps = kKeys / 16;
  static constexpr u32 kTile = 64 * kHeadDim * 2;  // bytes of 64 rows
  static constexpr u32 kSmemBytes = kTile * (1 + 2 * kStages);
  using Q = u32[kQkSteps][4];
  using Tile = SharedTile<kHeadDim * 2>;

  static OCTAVO_DEVICE Tile q_tile() { return {ptx::shared_base()}; }
  static OCTAVO_DEVICE Tile k_tile(i32 n) {
    return {ptx::shared_base() + kTile * (1 + static_cast<u32>(n % kStages) * 2)};
  }
  static OCTAVO_DEVICE Tile v_tile(i32 n) { return {k_tile(n).base + kTile}; }

  // Starts copying 64 rows. Those that do not exist become zeros, and are not read.
  static OCTAVO_DEVICE void start_copy(const Tile& tile, const u16* from, i32 exist) {
    constexpr u32 kChunks = kHeadDim / 8;  // of 16 bytes in a row
    OCTAVO_UNROLL
    for (u32 i = ptx::thread_index(); i < 64 * kChunks; i += kThreads) {
      const u32 row = i / kChunks, chunk = i % kChunks;
      ptx::cp_async_16(tile.chunk_address(row, chunk), from + row * kHeadDim + chunk * 8,
                       ptx::mask_term(static_cast<i32>(row) < exist, true));
    }
  }

  // Left operands of this warp's 16 rows.
  static OCTAVO_DEVICE void load_q(Q& q) {
    const u32 lane = ptx::lane_index(), row = ptx::warp_index() * 16 + lane % 16;
    OCTAVO_UNROLL
    for (u32 step = 0; step < kQkSteps; ++step)
      ptx::ldmatrix_x4(q[step], q_tile().chunk_address(row, step * 2 + lane / 16));
  }

  // Both products multiply with the right operands of two tiles of eight columns at a time.
  template <int kColumns>
  static OCTAVO_DEVICE void multiply_pair(Accumulator<kColumns>& d, const u32 (&a)[4],
                                          const u32 (&b)[4], int pair) {
    ptx::mma_m16n8k16_f16(d.tile(pair * 2), a, {b[0], b[1]}, d.tile(pair * 2));
    ptx::mma_m16n8k16_f16(d.tile(pair * 2 + 1), a, {b[2], b[3]}, d.tile(pair * 2 + 1));
  }
  static OCTAVO_DEVICE void multiply_qk(Accumulator<kKeys>& s, const Q& q, const Tile& k) {
    const u32 lane = ptx::lane_index(), key = lane / 16 * 8 + lane % 8, chunk = lane / 8 % 2;
    OCTAVO_UNROLL
    for (u32 step = 0; step < kQkSteps; ++step) {
      OCTAVO_UNROLL
      for (int pair = 0; pair < kKeys / 16; ++pair) {
        u32 b[4];
        ptx::ldmatrix_x4(b, k.chunk_address(pair * 16 + key, step * 2 + chunk));
        multiply_pair(s, q[step], b, pair);
      }
    }
  }
  static OCTAVO_DEVICE void multiply_pv(Accumulator<kHeadDim>& o, const Accumulator<kKeys>& s,
                                        const Tile& v) {
    const u32 lane = ptx::lane_index(), key = lane % 16, chunk = lane / 16;
    OCTAVO_UNROLL
    for (int step = 0; step < kPvSteps; ++step) {
      u32 a[4];
      pack_p(a, s, step);
      OCTAVO_UNROLL
      for (int pair = 0; pair < kHeadDim / 16; ++pair) {
        u32 b[4];
        ptx::ldmatrix_x4_trans(b, v.chunk_address(step * 16 + key, pair * 2 + chunk));
        multiply_pair(o, a, b, pair);
      }
    }
  }

  static OCTAVO_DEVICE void run(const Params& p) {
    const RowTile<kRows> tile(p);
    const i32 blocks = div_up(tile.keys(p), kKeys);
    const i64 kv = i64{tile.head} * p.seqlen_kv * kHeadDim;
    // One group for each block, also for one that does not exist: the waits count groups.
    const auto start_block = [&](i32 n) {
      if (n < blocks) {
        const i64 at = kv + i64{n} * kKeys * kHeadDim;
        start_copy(k_tile(n), p.k + at, p.seqlen_kv - n * kKeys);
        start_copy(v_tile(n), p.v + at, p.seqlen_kv - n * kKeys);
      }
      ptx::cp_async_commit();
    };
    start_copy(q_tile(), p.q + (i64{tile.head} * p.seqlen_q + tile.first_row) * kHeadDim,
               p.seqlen_q - tile.first_row);  // in the group of block 0
    OCTAVO_UNROLL
    for (i32 n = 0; n < kStages - 1; ++n) start_block(n);

    const i32 warp_row = tile.first_row + static_cast<i32>(ptx::warp_index()) * 16;
    const i32 row = warp_row + static_cast<i32>(ptx::lane_index() / 4);
    Q q;
    Accumulator<kHeadDim> o;
    RowState rows;
    OCTAVO_ROLLED
    for (i32 n = 0; n < blocks; ++n) {
      ptx::cp_async_wait<kStages - 2>();
      ptx::cta_sync();
      start_block(n + kStages - 1);
      if (n == 0) load_q(q);
      Accumulator<kKeys> s;
      multiply_qk(s, q, k_tile(n));
      if ((n + 1) * kKeys > visible_keys(p, warp_row)) hide_keys(s, p, row, n * kKeys);
      online_softmax(s, o, rows, p.scale_log2);
      multiply_pv(o, s, v_tile(n));
    }
    store_o(o, rows, p, tile.head, row);
  }
};

template <int kHeadDim>
OCTAVO_KERNEL(AsyncCopies<kHeadDim>::kThreads, 1)
async_copies(const OCTAVO_GRID_CONSTANT Params p) {
  AsyncCopies<kHeadDim>::run(p);
}

}  // namespace octavo::ladder
