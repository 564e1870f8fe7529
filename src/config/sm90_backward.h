// SPDX-License-Identifier: Apache-2.0
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
  int head_dim = 128;               // columns of the tiles: 64, 128 or 256
  int block_m = 64;                 // queries of a block
  int block_n = 128;                // keys of a work tile: 64 for each consumer warpgroup, or 64
                                    // for both (divides_products)
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

// The tiles for a head dimension of at most 256. Larger blocks of queries read fewer operand bytes
// for each product, and with 128 columns there are registers for 64 queries. With 256 columns there
// is room for two stages of Q, which the dK of a block needs last, or of dO, but not of both.
OCTAVO_HD constexpr Config tiles_for(int head_dim, Element element) {
  if (head_dim <= 64) return {.element = element, .head_dim = 64, .block_m = 128};
  if (head_dim <= 128) return {.element = element, .head_dim = 128, .block_m = 64};
  return {.element = element,
          .head_dim = 256,
          .block_m = 64,
          .block_n = 64,
          .stages_q = 2,
          .stages_do = 1,
          .dq_buffers = 3};
}

// Two warpgroups share the 64 keys of a tile and divide the products: one computes P and dV, the
// other dS and dK. With 256 columns, dK and dV of 64 keys do not fit the registers of one.
OCTAVO_HD constexpr bool divides_products(const Config& c) { return c.head_dim > 128; }

OCTAVO_HD constexpr int warpgroups(const Config& c) {
  return divides_products(c) ? 2 : c.block_n / kRows;
}
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
// Parts of a block of dQ that are added to global memory one after another: all of it, or 64
// columns.
OCTAVO_HD constexpr int dq_slices(const Config& c) {
  return divides_products(c) ? c.head_dim / 64 : 1;
}
// With divides_products each half of the columns has slices and buffers of its own, as one
// warpgroup computes it. The lower half has one buffer more if their number is odd.
OCTAVO_HD constexpr int dq_halves(const Config& c) { return divides_products(c) ? 2 : 1; }
OCTAVO_HD constexpr int dq_buffers_of(const Config& c, int half) {
  return (c.dq_buffers + dq_halves(c) - 1 - half) / dq_halves(c);
}
// dS, a row for each query: panels of 64 keys.
OCTAVO_HD constexpr Panels ds_panels(const Config& c) { return panels(c.block_n, c.element); }

// A warpgroup may be one block ahead of another that still reads dS. With divides_products a buffer
// holds P first and then dS.
inline constexpr int kDsBuffers = 2;
inline constexpr int kWorkBytes = 64;  // of a work tile's description

// k_full, v_full, tail_full; full and empty of each stage and buffer; with divides_products p_full
// of each dS buffer.
OCTAVO_HD constexpr int barriers(const Config& c) {
  return 3 + 2 * (c.stages_q + c.stages_do + c.dq_buffers + kDsBuffers) +
         (divides_products(c) ? kDsBuffers : 0);
}

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
  s.dq_tile = c.block_m * c.head_dim * 4 / dq_slices(c);
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
  s.total = s.barriers + 8 * barriers(c);
  return s;
}
OCTAVO_HD constexpr int smem_bytes(const Config& c) { return smem_plan(c).total; }

// The sm90_finish_dq kernel.
inline constexpr int kFinishThreads = 256;
// A row of dQ in shared memory: 16 bytes more than it needs, so that rows start at different banks.
OCTAVO_HD constexpr int finish_row_bytes(const Config& c) { return c.head_dim * 2 + 16; }
OCTAVO_HD constexpr int finish_smem_bytes(const Config& c) {
  return c.block_m * finish_row_bytes(c);
}

}  // namespace sm90::backward

}  // namespace octavo
