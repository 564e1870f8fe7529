// SPDX-License-Identifier: Apache-2.0
// Rung 3, tensor cores: a warp multiplies 16 rows by mma.sync.
//
// The new idea is the tensor core. One instruction of a warp, m16n8k16, does 2048 multiply-adds on
// FP16 operands and adds them in FP32; rung 2 needs 64 instructions for as many. Its operands are
// fragments: each lane holds a few elements of each matrix, in a layout that the instruction
// dictates (fragments.cuh, and device/ptx/mma.cuh). So the work is to bring every element to its
// lane:
//
//   operand         of S = Q K^T                      of O += P V
//   left, 16 x 16   Q, registers, loaded once         P, made of the S in the same registers
//   right, 16 x 8   K: two columns of one key         V: two keys of one column
//
// Two elements of one key are neighbours in memory, two keys of one column are not: so V is
// transposed on its way into shared memory. Every lane then loads a register of a fragment by one
// 32-bit access.
//
//   warp            rows 16 w to 16 w + 15 of 64
//   shared memory   what                                      row in bytes     bytes at head_dim 64
//   tile            64 keys of K, then                        2 head_dim + 16  9216
//                   head_dim columns of V with 64 keys        2 * 64 + 16      9216
//
// The 16 bytes behind each row shift it by four banks: the eight rows and four words that a warp
// reads at once fill all 32 banks.
//
//   barrier    before it                              after it
//   cta_sync   every warp has used V of the last block   K may overwrite it
//   cta_sync   K is written                           every warp may read it
//   cta_sync   every warp has its scores              V may overwrite K
//   cta_sync   V is written                           every warp may read it
#pragma once

#include "device/ladder/fragments.cuh"
#include "device/ptx/mma.cuh"
#include "device/ptx/vector_memory.cuh"

namespace octavo::ladder {

template <int kHeadDim>
struct TensorCores {
  static constexpr int kThreads = 128, kRows = 64, kKeys = 64;
  static constexpr int kQkSteps = kHeadDim / 16, kPvSteps = kKeys / 16;
  static constexpr u32 kKRow = kHeadDim * 2 + 16, kVRow = kKeys * 2 + 16;  // in bytes
  static constexpr u32 kSmemBytes = max_of(kKeys * kKRow, kHeadDim* kVRow);
  using Q = u32[kQkSteps][4];

  // This warp's 16 rows of Q as left operands: rows g and g + 8, columns 2 t and 2 t + 8.
  static OCTAVO_DEVICE void load_q(Q& q, const Params& p, i32 head, i32 row) {
    OCTAVO_UNROLL
    for (int i = 0; i < kQkSteps * 4; ++i) {
      const i32 at_row = row + i % 2 * 8;
      const u32 column = i / 4 * 16 + i / 2 % 2 * 8 + ptx::lane_index() % 4 * 2;
      const u16* const from = p.q + (i64{head} * p.seqlen_q + at_row) * kHeadDim + column;
      q[i / 4][i % 4] = ptx::mask_term(at_row < p.seqlen_q, true) ? ptx::load_global_b32(from) : 0u;
    }
  }

  // Calls store(key, column, x) for this thread's share of 64 rows, 8 columns x at a time. Keys
  // that do not exist are zeros.
  template <class Store>
  static OCTAVO_DEVICE void load_rows(const u16* from, i32 exist, Store&& store) {
    OCTAVO_UNROLL
    for (u32 i = ptx::thread_index(); i < kKeys * kHeadDim / 8; i += kThreads) {
      const u32 key = i % kKeys, column = i / kKeys * 8;
      u32 x[4] = {};
      if (ptx::mask_term(static_cast<i32>(key) < exist, true))
        ptx::load_global_b128(from + key * kHeadDim + column, x);
      store(key, column, x);
    }
  }
  static OCTAVO_DEVICE void load_k(const u16* from, i32 exist) {
    load_rows(from, exist, [](u32 key, u32 column, const u32(&x)[4]) {
      ptx::store_shared_b128(ptx::shared_base() + key * kKRow + column * 2, x);
    });
  }
  static OCTAVO_DEVICE void load_v_transposed(const u16* from, i32 exist) {
    load_rows(from, exist, [](u32 key, u32 column, const u32(&x)[4]) {
      OCTAVO_UNROLL
      for (u32 e = 0; e < 8; ++e)
        ptx::store_shared_b16(ptx::shared_base() + (column + e) * kVRow + key * 2,
                              static_cast<u16>(x[e / 2] >> (e % 2 * 16)));
    });
  }

  // A right operand: element pairs at the columns 2 t and 2 t + 8 of row g of eight rows.
  static OCTAVO_DEVICE void load_operand(u32 (&b)[2], u32 row_bytes, u32 row, u32 column) {
    const u32 lane = ptx::lane_index();
    const u32 at = ptx::shared_base() + (row + lane / 4) * row_bytes + column * 2;
    b[0] = ptx::bits_of(ptx::load_shared_f32(at + lane % 4 * 4));
    b[1] = ptx::bits_of(ptx::load_shared_f32(at + lane % 4 * 4 + 16));
  }

  static OCTAVO_DEVICE void multiply_qk(Accumulator<kKeys>& s, const Q& q) {
    OCTAVO_UNROLL
    for (int step = 0; step < kQkSteps; ++step) {
      OCTAVO_UNROLL
      for (int n = 0; n < kKeys / 8; ++n) {
        u32 b[2];
        load_operand(b, kKRow, n * 8, step * 16);
        ptx::mma_m16n8k16_f16(s.tile(n), q[step], b, s.tile(n));
      }
    }
  }
  static OCTAVO_DEVICE void multiply_pv(Accumulator<kHeadDim>& o, const Accumulator<kKeys>& s) {
    OCTAVO_UNROLL
    for (int step = 0; step < kPvSteps; ++step) {
      u32 a[4];
      pack_p(a, s, step);
      OCTAVO_UNROLL
      for (int n = 0; n < kHeadDim / 8; ++n) {
        u32 b[2];
        load_operand(b, kVRow, n * 8, step * 16);
        ptx::mma_m16n8k16_f16(o.tile(n), a, b, o.tile(n));
      }
    }
  }

  static OCTAVO_DEVICE void run(const Params& p) {
    const RowTile<kRows> tile(p);
    const i32 warp_row = tile.first_row + static_cast<i32>(ptx::warp_index()) * 16;
    const i32 row = warp_row + static_cast<i32>(ptx::lane_index() / 4);
    const i64 kv = i64{tile.head} * p.seqlen_kv * kHeadDim;
    Q q;
    load_q(q, p, tile.head, row);
    Accumulator<kHeadDim> o;
    RowState rows;
    const i32 keys = tile.keys(p);
    OCTAVO_ROLLED
    for (i32 key = 0; key < keys; key += kKeys) {
      const i64 at = kv + i64{key} * kHeadDim;
      ptx::cta_sync();
      load_k(p.k + at, p.seqlen_kv - key);
      ptx::cta_sync();
      Accumulator<kKeys> s;
      multiply_qk(s, q);
      if (key + kKeys > visible_keys(p, warp_row)) hide_keys(s, p, row, key);
      online_softmax(s, o, rows, p.scale_log2);
      ptx::cta_sync();
      load_v_transposed(p.v + at, p.seqlen_kv - key);
      ptx::cta_sync();
      multiply_pv(o, s);
    }
    store_o(o, rows, p, tile.head, row);
  }
};

template <int kHeadDim>
OCTAVO_KERNEL(TensorCores<kHeadDim>::kThreads, 1)
tensor_cores(const OCTAVO_GRID_CONSTANT Params p) {
  TensorCores<kHeadDim>::run(p);
}

}  // namespace octavo::ladder
