// SPDX-License-Identifier: Apache-2.0
// Adds the partial sums of dQ, scales and rounds them, and stores them as rows. A CTA computes one
// block of queries. The sums are in accumulator order, so rows are assembled in shared memory.
#pragma once

#include "device/ptx/math.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/vector_memory.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/sm90/backward/geometry.cuh"
#include "device/sm90/backward/work.cuh"

namespace octavo::sm90::backward {

template <class Config>
struct FinishDq {
  static constexpr Sm90BackwardConfig C = Config::value;
  static constexpr i32 kQuads = C.block_m * C.head_dim / 4 / kFinishThreads;  // of a thread

  // Where four consecutive sums belong, which ConsumerSteps::store_dq has written from one thread's
  // accumulator (ptx/wgmma.cuh): two neighbouring columns of `row`, and the same columns eight rows
  // further. With transposes_dq the rows are columns of dQ. The sums are in parts, one for each
  // warpgroup or for each slice of columns.
  struct Quad {
    i32 row, column;
    OCTAVO_DEVICE explicit Quad(i32 index) {
      constexpr bool kSlices = dq_slices(C) > 1;
      constexpr i32 kOfPart = dq_registers(C) / 4 * kWarpgroup;  // fewer in a last part
      const i32 part = index / kOfPart, threads = part == 0 ? kWarpgroup : last_dq_threads(C);
      const i32 thread = index % kOfPart % threads, quad = index % kOfPart / threads;
      row = (kSlices ? 0 : part * kRows) + thread / 32 * 16 + thread % 32 / 4;
      column = (kSlices ? part * 64 : 0) + quad * 8 + thread % 4 * 2;
    }
  };
  static OCTAVO_DEVICE u32 address(i32 query, i32 column) {
    return ptx::shared_base() + static_cast<u32>(query * finish_row_bytes(C) + column * 2);
  }
  static OCTAVO_DEVICE u32 rounded(u32 low, u32 high, float scale) {
    const float x = ptx::float_of_bits(low) * scale, y = ptx::float_of_bits(high) * scale;
    return C.element == Element::f16 ? ptx::f16x2_from_f32(x, y) : ptx::bf16x2_from_f32(x, y);
  }
  static OCTAVO_DEVICE void store_pair(const Quad& at, i32 row, u32 pair) {
    if (!transposes_dq(C)) {
      ptx::store_shared_b32(address(row, at.column), pair);
      return;
    }
    ptx::store_shared_b16(address(at.column, row), static_cast<u16>(pair));
    ptx::store_shared_b16(address(at.column + 1, row), static_cast<u16>(pair >> 16));
  }

  static OCTAVO_DEVICE void load_tile(const float* sums, u32 (&x)[kQuads][4]) {
    const i32 thread = static_cast<i32>(ptx::thread_index());
    OCTAVO_UNROLL
    for (i32 i = 0; i < kQuads; ++i)
      ptx::load_coherent_b128(sums + (i * kFinishThreads + thread) * 4, x[i]);
  }
  // Rounds a tile of sums, or of two partial sums that are `stride` floats apart, into shared
  // memory.
  static OCTAVO_DEVICE void round_tile(const float* sums, bool has_two, i64 stride, float scale) {
    const i32 thread = static_cast<i32>(ptx::thread_index());
    u32 x[kQuads][4];
    load_tile(sums, x);
    if (has_two) {
      u32 y[kQuads][4];
      load_tile(sums + stride, y);
      OCTAVO_UNROLL
      for (i32 i = 0; i < kQuads * 4; ++i) {
        u32& sum = x[i / 4][i % 4];
        sum = ptx::bits_of(ptx::float_of_bits(sum) + ptx::float_of_bits(y[i / 4][i % 4]));
      }
    }
    OCTAVO_UNROLL
    for (i32 i = 0; i < kQuads; ++i) {
      const Quad at(i * kFinishThreads + thread);
      store_pair(at, at.row, rounded(x[i][0], x[i][1], scale));
      store_pair(at, at.row + 8, rounded(x[i][2], x[i][3], scale));
    }
    ptx::cta_sync();
  }

  // Stores the first `rows` rows, or zeros if no key sees them.
  static OCTAVO_DEVICE void store_rows(u8* to, i64 row_stride, i32 rows, i32 head_dim, bool zeros) {
    constexpr i32 kChunks = C.head_dim / 8;  // of a row, 16 bytes each
    OCTAVO_UNROLL
    for (i32 i = 0; i < div_up(C.block_m * kChunks, kFinishThreads); ++i) {
      const i32 chunk = i * kFinishThreads + static_cast<i32>(ptx::thread_index());
      const i32 row = chunk / kChunks, column = chunk % kChunks * 8;
      if (row >= min_of(rows, C.block_m) || column >= head_dim) continue;
      u32 x[4] = {};
      if (!zeros) ptx::load_shared_b128(address(row, column), x);
      ptx::store_global_b128(to + 2 * (row * row_stride + column), x);
    }
  }
};

template <class Config>
OCTAVO_KERNEL(kFinishThreads, 1)
sm90_finish_dq(const OCTAVO_GRID_CONSTANT ParamsOf<Config> p) {
  constexpr Sm90BackwardConfig C = Config::value;
  ptx::wait_for_earlier_grids();
  const i32 m_blocks = div_up(p.seqlen_q, C.block_m), heads = p.heads_kv * p.heads_per_kv;
  const i32 m = ptx::block_index_x() % m_blocks, of_all = ptx::block_index_x() / m_blocks;
  const i32 head = of_all % heads, sequence = of_all / heads;
  const SequenceSpan span = Work<Config>::span_of(p, sequence);
  if (C.modifiers.padded) {
    if (p.cu_seqlens_q == nullptr)
      clear_padding<kFinishThreads>(p.dq, p.dq_strides,
                                    sequence * p.dq_strides.batch + head * p.dq_strides.head,
                                    m * C.block_m, min_of(C.block_m, p.seqlen_q - m * C.block_m),
                                    span.q_begin, span.seqlen_q, p.head_dim);
  }
  if (m * C.block_m >= span.seqlen_q) return;
  const TileRange tiles = Work<Config>::tiles_of(p, span, m);
  const bool has_keys = tiles.begin < tiles.end;
  if (has_keys) {
    // Under a mask tile n adds to sum n % dq_sums; otherwise the first half of the tiles adds to
    // one sum and the rest to the other. So two or more tiles have written both sums, and one tile
    // has written one.
    const bool has_two = p.dq_sums > 1 && tiles.end - tiles.begin > 1;
    const i32 first_sum = has_two ? 0 : tiles.begin % p.dq_sums;
    const i64 tile = static_cast<i64>(first_sum * heads + head) * p.dq_tiles +
                     first_dq_tile<C.block_m>(p, span, sequence) + m;
    constexpr i32 kTile = C.block_m * C.head_dim;
    FinishDq<Config>::round_tile(p.dq_sum + tile * kTile, has_two,
                                 static_cast<i64>(heads) * p.dq_tiles * kTile, p.scale);
  }
  u8* const to = static_cast<u8*>(p.dq) +
                 2 * ((p.cu_seqlens_q == nullptr ? sequence : 0) * p.dq_strides.batch +
                      head * p.dq_strides.head + (span.q_begin + m * C.block_m) * p.dq_strides.row);
  FinishDq<Config>::store_rows(to, p.dq_strides.row, span.seqlen_q - m * C.block_m, p.head_dim,
                               !has_keys);
}

}  // namespace octavo::sm90::backward
