// Configuration of the Hopper backward kernel (device/sm90/backward/backward.cuh) as a value, and
// the sizes that follow from it. Host and device read the same functions.
#pragma once

#include "config/element.h"
#include "config/portable.h"
#include "config/shared_parts.h"
#include "config/sm90_forward.h"

namespace octavo {

struct Sm90BackwardConfig {
  Element element = Element::bf16;  // of every tensor: f16 or bf16
  int head_dim = 128;               // columns of the tiles: 64 or 128
  int block_m = 64;                 // queries of a block
  int block_n = 128;                // keys of a work tile: 64 for each consumer warpgroup
  int stages_q = 2;                 // Q buffers
  int stages_do = 2;                // dO buffers
  int dq_buffers = 2;               // dQ buffers, each with a warp that adds it to global memory
  ModifierConfig modifiers = {};    // softcap, alibi and padded only

  bool operator==(const Sm90BackwardConfig&) const = default;
};

// `c` with the modifiers that it must apply. With 64 columns the compiler spills a softcap alone,
// but not together with ALiBi.
OCTAVO_HD constexpr Sm90BackwardConfig with_modifiers(Sm90BackwardConfig c,
                                                      const ModifierConfig& m) {
  c.modifiers = m;
  if (m.softcap && c.head_dim == 64) c.modifiers.alibi = true;
  return c;
}

namespace sm90::backward {

using Config = Sm90BackwardConfig;

OCTAVO_HD constexpr int warpgroups(const Config& c) { return c.block_n / kRows; }
OCTAVO_HD constexpr int consumer_threads(const Config& c) { return warpgroups(c) * kWarpgroup; }
OCTAVO_HD constexpr int threads(const Config& c) { return consumer_threads(c) + kWarpgroup; }
OCTAVO_HD constexpr int consumer_registers(const Config& c) {
  return warpgroups(c) <= 2 ? 240 : 160;
}
OCTAVO_HD constexpr int producer_registers(const Config& c) { return warpgroups(c) <= 2 ? 24 : 32; }

// The product for dK runs on under the next block's scores, and dS stays in registers meanwhile.
OCTAVO_HD constexpr bool carries_dk(const Config& c) { return c.block_m <= 64; }

// A warpgroup computes 64 columns of the head as rows of dQ^T = K^T dS^T; else 64 queries of
// dQ = dS K.
OCTAVO_HD constexpr bool transposes_dq(const Config& c) {
  return c.head_dim == warpgroups(c) * kRows;
}
// FP32 values of dQ that a thread computes of each block.
OCTAVO_HD constexpr int dq_registers(const Config& c) {
  return c.block_m * c.head_dim / consumer_threads(c);
}

OCTAVO_HD constexpr Panels head_panels(const Config& c) { return panels(c.head_dim, c.element); }
// dS, a row for each query: panels of 64 keys, one for each warpgroup.
OCTAVO_HD constexpr Panels ds_panels(const Config& c) { return panels(c.block_n, c.element); }

// A warpgroup may be one block ahead of another that still reads dS.
inline constexpr int kDsBuffers = 2;
inline constexpr int kWorkBytes = 64;  // of a work tile's description

struct SmemPlan {
  int k, v, q, dout, ds, dq, lse_log2, delta, blocks, slopes, work, barriers,
      total;                                                // bytes from the start
  int kv_tile, q_stage, ds_tile, dq_tile, row_stats_bytes;  // bytes of one
};
OCTAVO_HD constexpr SmemPlan smem_plan(const Config& c) {
  SmemPlan s{};
  s.kv_tile = c.block_n * c.head_dim * 2;
  s.q_stage = c.block_m * c.head_dim * 2;
  s.ds_tile = c.block_m * c.block_n * 2;
  s.dq_tile = c.block_m * c.head_dim * 4;
  s.row_stats_bytes = c.block_m * 4;
  s.k = 0;
  s.v = s.k + s.kv_tile;
  s.q = s.v + s.kv_tile;
  s.dout = s.q + c.stages_q * s.q_stage;
  s.ds = s.dout + c.stages_do * s.q_stage;
  s.dq = s.ds + kDsBuffers * s.ds_tile;
  s.lse_log2 = s.dq + c.dq_buffers * s.dq_tile;
  s.delta = s.lse_log2 + c.stages_q * s.row_stats_bytes;
  s.blocks = s.delta + c.stages_do * s.row_stats_bytes;
  s.slopes = s.blocks + c.stages_q * 4;
  s.work = s.blocks + round_up(c.stages_q * (c.modifiers.alibi ? 8 : 4), 16);
  s.barriers = s.work + kWorkBytes;
  // k_full, v_full, tail_full; full and empty of each stage and buffer.
  s.total = s.barriers + 8 * (3 + 2 * (c.stages_q + c.stages_do + c.dq_buffers));
  return s;
}
OCTAVO_HD constexpr int smem_bytes(const Config& c) { return smem_plan(c).total; }

// Of sm90_finish_dq.
inline constexpr int kFinishThreads = 256;
// A row of dQ in shared memory: 16 bytes more than it needs, so that rows start at different banks.
OCTAVO_HD constexpr int finish_row_bytes(const Config& c) { return c.head_dim * 2 + 16; }
OCTAVO_HD constexpr int finish_smem_bytes(const Config& c) {
  return c.block_m * finish_row_bytes(c);
}

}  // namespace sm90::backward

}  // namespace octavo
