// dQ from its FP32 sums: scaled, rounded, and stored as rows. A CTA has one block of queries.
#pragma once

#include "device/ptx/math.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/sm90/backward/geometry.cuh"
#include "device/sm90/backward/work.cuh"

namespace octavo::sm90::backward {

inline constexpr int kFinishThreads = 256;

// Where an element of dQ lies in its tile: Consumer::store_dq writes registers in turn, and the
// order of registers is that of wgmma's accumulators (ptx/wgmma.cuh).
template <class Config>
OCTAVO_HD constexpr i32 dq_offset(i32 query, i32 column) {
  constexpr Sm90BackwardConfig C = Config::value;
  const i32 row = transposes_dq(C) ? column : query, other = transposes_dq(C) ? query : column;
  const i32 quad = row / kRows * (dq_registers(C) / 4) + other / 8;
  const i32 warp = row % kRows / 16, lane = row % 8 * 4 + other % 8 / 2;
  return (quad * kWarpgroup + warp * 32 + lane) * 4 + row / 8 % 2 * 2 + other % 2;
}

template <class Config>
OCTAVO_KERNEL(kFinishThreads, 1)
sm90_finish_dq(const OCTAVO_GRID_CONSTANT ParamsOf<Config> p) {
  constexpr Sm90BackwardConfig C = Config::value;
  constexpr i32 kChunks = C.head_dim / 8;  // of a row, 16 bytes each
  ptx::wait_for_earlier_grids();
  const i32 m_blocks = div_up(p.seqlen_q, C.block_m), heads = p.heads_kv * p.heads_per_kv;
  const i32 m = ptx::block_index_x() % m_blocks, of_all = ptx::block_index_x() / m_blocks;
  const i32 head = of_all % heads, sequence = of_all / heads;
  const SequenceSpan at = Work<Config>::span_of(p, sequence);
  if (C.modifiers.padded) {
    if (p.cu_seqlens_q == nullptr)
      clear_padding<kFinishThreads>(p.dq, p.dq_strides,
                                    sequence * p.dq_strides.batch + head * p.dq_strides.head,
                                    m * C.block_m, min_of(C.block_m, p.seqlen_q - m * C.block_m),
                                    at.q_begin, at.seqlen_q, p.head_dim);
  }
  if (m * C.block_m >= at.seqlen_q) return;
  const TileRange tiles = Work<Config>::tiles_of(p, at, m);
  const i64 tile = static_cast<i64>(head) * p.dq_tiles + first_dq_tile<C.block_m>(p, at, sequence);
  const float* const sums = p.dq_sum + (tile + m) * (C.block_m * C.head_dim);
  u8* const to = static_cast<u8*>(p.dq) +
                 2 * ((p.cu_seqlens_q == nullptr ? sequence : 0) * p.dq_strides.batch +
                      head * p.dq_strides.head + (at.q_begin + m * C.block_m) * p.dq_strides.row);
  OCTAVO_UNROLL
  for (i32 i = 0; i < C.block_m * kChunks / kFinishThreads; ++i) {
    const i32 chunk = i * kFinishThreads + static_cast<i32>(ptx::thread_index());
    const i32 row = chunk / kChunks, column = chunk % kChunks * 8;
    if (m * C.block_m + row >= at.seqlen_q || column >= p.head_dim) continue;
    float x[8];
    OCTAVO_UNROLL
    for (i32 e = 0; e < 8; ++e)
      x[e] = tiles.begin < tiles.end
                 ? p.scale * ptx::load_written_f32(sums + dq_offset<Config>(row, column + e))
                 : 0.0f;
    u32 packed[4];
    OCTAVO_UNROLL
    for (i32 e = 0; e < 4; ++e)
      packed[e] = C.element == Element::f16 ? ptx::f16x2_from_f32(x[e * 2], x[e * 2 + 1])
                                            : ptx::bf16x2_from_f32(x[e * 2], x[e * 2 + 1]);
    ptx::store_global_b128(to + 2 * (row * p.dq_strides.row + column), packed);
  }
}

}  // namespace octavo::sm90::backward
