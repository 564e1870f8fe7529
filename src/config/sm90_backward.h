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
  int head_dim = 128;               // columns of the products: 64, 80, 96, 128, 192 or 256
  int block_m = 64;                 // queries of a block
  int block_n = 128;                // keys of a work tile: 64 for each consumer warpgroup; 64 for
                                    // both if they divide products; 64 for each CTA of a pair
  int stages_q = 2;                 // Q buffers
  int stages_do = 2;                // dO buffers
  int dq_buffers = 2;               // dQ buffers
  ModifierConfig modifiers = {};    // softcap, alibi and padded only

  bool operator==(const Sm90BackwardConfig&) const = default;
};

// `c` with the modifiers that it must apply. With 64 and 256 columns the compiler spills a softcap
// alone, but not together with ALiBi.
OCTAVO_HD constexpr Sm90BackwardConfig with_modifiers(Sm90BackwardConfig c,
                                                      const ModifierConfig& m) {
  c.modifiers = m;
  if (m.softcap && (c.head_dim == 64 || c.head_dim == 256)) c.modifiers.alibi = true;
  return c;
}

namespace sm90::backward {

using Config = Sm90BackwardConfig;

// The columns of the products for a head dimension of at most 256.
OCTAVO_HD constexpr int product_columns(int head_dim) {
  const int narrower[] = {64, 80, 96, 128, 192};
  for (const int columns : narrower)
    if (head_dim <= columns) return columns;
  return 256;
}
// The tiles for a head dimension. Larger blocks of queries read fewer operand bytes for each
// product, and with more than 64 columns there are registers for 64 queries. With 256 columns there
// is room for two stages of Q, which the dK of a block needs last, or of dO, but not of both.
OCTAVO_HD constexpr Config tiles_for(int head_dim, Element element) {
  Config c{.element = element, .head_dim = product_columns(head_dim)};
  c.block_m = c.head_dim == 64 ? 128 : 64;
  if (c.head_dim <= 128) return c;
  if (c.head_dim <= 192) {
    c.block_n = 64;
    c.dq_buffers = 3;
  } else {
    c.stages_do = c.dq_buffers = 1;
  }
  return c;
}
// The tiles of problems that have too few keys for every SM: 64 keys, so that there are twice as
// many CTAs. Two warpgroups can divide 128 columns, but not 80 or 96. With 256 columns a CTA has 64
// keys in any case.
OCTAVO_HD constexpr Config small_tiles_for(int head_dim, Element element) {
  Config c = tiles_for(head_dim, element);
  if (c.head_dim > 192) return c;
  if (c.head_dim > 64 && c.head_dim < 128) c.head_dim = 128;
  c.block_m = c.block_n = 64;
  c.dq_buffers = 3;
  return c;
}

// With 256 columns a cluster of two CTAs has a tile of 128 keys. Each computes dS of its own 64
// keys and sends it to the other one, and dQ of half of the columns for all keys. So half as much
// dQ goes to global memory as if each added dQ of its own keys.
OCTAVO_HD constexpr bool is_pair(const Config& c) { return c.head_dim > 192 && c.block_n > kRows; }
OCTAVO_HD constexpr int ctas(const Config& c) { return is_pair(c) ? 2 : 1; }
OCTAVO_HD constexpr int cta_keys(const Config& c) { return c.block_n / ctas(c); }

// Two warpgroups share the 64 keys of a CTA and divide the products: one computes P and dV, the
// other dS and dK. With more than 128 columns, dK and dV of 64 keys do not fit the registers of
// one.
OCTAVO_HD constexpr bool divides_products(const Config& c) {
  return cta_keys(c) == kRows && c.head_dim > kRows;
}

// The warpgroups that compute dK and dV. In a pair a third one computes dQ.
OCTAVO_HD constexpr int warpgroups(const Config& c) {
  return divides_products(c) ? 2 : c.block_n / kRows;
}
OCTAVO_HD constexpr int consumer_threads(const Config& c) { return warpgroups(c) * kWarpgroup; }
OCTAVO_HD constexpr int threads(const Config& c) {
  return consumer_threads(c) + kWarpgroup * ctas(c);
}
// setmaxnreg moves registers from the producer to the consumers. With one consumer warpgroup the
// kernel is compiled for two CTAs on an SM, as a CTA alone would be launched with the 255 registers
// a thread that setmaxnreg cannot divide.
OCTAVO_HD constexpr int min_ctas(const Config& c) { return warpgroups(c) == 1 ? 2 : 1; }
OCTAVO_HD constexpr int launch_registers(const Config& c) {
  return 65536 / (threads(c) * min_ctas(c)) / 8 * 8;
}
OCTAVO_HD constexpr int producer_registers(const Config& c) { return is_pair(c) ? 32 : 24; }
inline constexpr int kDqGroupRegisters = 64;  // of the warpgroup that computes dQ in a pair
OCTAVO_HD constexpr int consumer_registers(const Config& c) {
  const int others = producer_registers(c) + (is_pair(c) ? kDqGroupRegisters : 0);
  return (launch_registers(c) * threads(c) - others * kWarpgroup) / consumer_threads(c);
}

// A row of a tile in shared memory: panels of 64 columns. TMA fills the columns of the last panel
// that are beyond the head's with zeros, and only dQ^T reads them.
OCTAVO_HD constexpr int panel_columns(const Config& c) { return round_up(c.head_dim, 64); }
OCTAVO_HD constexpr Panels head_panels(const Config& c) {
  return panels(panel_columns(c), c.element);
}

// A warpgroup computes 64 columns of the head as rows of dQ^T = K^T dS^T; else 64 queries of
// dQ = dS K.
OCTAVO_HD constexpr bool transposes_dq(const Config& c) {
  return !divides_products(c) && c.block_m < warpgroups(c) * kRows;
}
// Parts of a block of dQ that are added to global memory one after another: all of it, or 64
// columns. Those of a CTA take the dQ buffers in turn, block by block.
OCTAVO_HD constexpr int dq_slices(const Config& c) {
  return divides_products(c) ? c.head_dim / 64 : 1;
}
OCTAVO_HD constexpr int cta_dq_slices(const Config& c) { return dq_slices(c) / ctas(c); }
// With divides_products one warpgroup computes the lower half of the columns and the other the
// upper half, except in a pair. The lower half has one more slice if their number is odd.
OCTAVO_HD constexpr int dq_halves(const Config& c) {
  return divides_products(c) && !is_pair(c) ? 2 : 1;
}
OCTAVO_HD constexpr int dq_slices_of(const Config& c, int half) {
  return (cta_dq_slices(c) + dq_halves(c) - 1 - half) / dq_halves(c);
}
// The warps that add dQ to global memory, each a slice at a time. One for each buffer; in a pair
// one for each slice, as one buffer is too few to keep the sums of two slices in flight.
OCTAVO_HD constexpr int dq_writers(const Config& c) {
  return is_pair(c) ? cta_dq_slices(c) : c.dq_buffers;
}
OCTAVO_HD constexpr int first_dq_slice(const Config& c, int half) {
  return half * dq_slices_of(c, 0);
}
// The warps that hold the columns, or queries, of a slice: with transposes_dq each has 16 columns
// of the head, and the last warps may have none.
OCTAVO_HD constexpr int dq_warps(const Config& c) {
  return divides_products(c) ? 4 : transposes_dq(c) ? c.head_dim / 16 : c.block_m / 16;
}
// The threads of the last warpgroup that are in these warps.
OCTAVO_HD constexpr int last_dq_threads(const Config& c) {
  return dq_warps(c) % 4 == 0 ? kWarpgroup : dq_warps(c) % 4 * 32;
}
// FP32 values of a slice of dQ that a thread of these warps has.
OCTAVO_HD constexpr int dq_registers(const Config& c) {
  return c.block_m * c.head_dim / dq_slices(c) / (32 * dq_warps(c));
}
// dS, a row for each query: panels of 64 keys.
OCTAVO_HD constexpr Panels ds_panels(const Config& c) { return panels(cta_keys(c), c.element); }

// A warpgroup may be one block ahead of another that still reads dS. With divides_products a buffer
// holds P first and then dS.
inline constexpr int kDsBuffers = 2;
inline constexpr int kWorkBytes = 64;  // of a work tile's description

// k_full, v_full, tail_full; full and empty of each stage and buffer, of a dQ buffer full for each
// writer and empty for each half; with divides_products p_full of each dS buffer; in a pair
// peer_ds_full of each and peer_k_full.
OCTAVO_HD constexpr int barriers(const Config& c) {
  return 3 + 2 * (c.stages_q + c.stages_do + kDsBuffers) + dq_writers(c) +
         dq_halves(c) * c.dq_buffers + (divides_products(c) ? kDsBuffers : 0) +
         (is_pair(c) ? kDsBuffers + 1 : 0);
}

struct SmemPlan {
  int k, v, q, dout, ds, peer_k, peer_ds, dq, lse_log2, delta, blocks, slopes, work, barriers,
      total;                                                // bytes from the start
  int kv_tile, q_stage, ds_tile, dq_tile, row_stats_bytes;  // bytes of one
};
OCTAVO_HD constexpr SmemPlan smem_plan(const Config& c) {
  SmemPlan s{};
  s.kv_tile = cta_keys(c) * panel_columns(c) * 2;
  s.q_stage = c.block_m * panel_columns(c) * 2;
  s.ds_tile = c.block_m * cta_keys(c) * 2;
  s.dq_tile = c.block_m * c.head_dim * 4 / dq_slices(c);
  s.row_stats_bytes = c.block_m * 4;
  s.k = 0;
  s.v = s.k + s.kv_tile;
  s.q = s.v + s.kv_tile;
  s.dout = s.q + c.stages_q * s.q_stage;
  s.ds = s.dout + c.stages_do * s.q_stage;
  s.peer_k = s.ds + kDsBuffers * s.ds_tile;
  s.peer_ds = s.peer_k + (is_pair(c) ? s.kv_tile / 2 : 0);
  s.dq = s.peer_ds + (is_pair(c) ? kDsBuffers * s.ds_tile : 0);
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
