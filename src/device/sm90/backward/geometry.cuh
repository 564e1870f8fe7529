// SPDX-License-Identifier: Apache-2.0
// Sizes, shared-memory addresses and barriers of the Hopper backward kernel, derived from its
// configuration.
#pragma once

#include "config/sm90_backward.h"
#include "device/ptx/cluster.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/memory.cuh"
#include "device/sm90/backward/params.cuh"
#include "device/tile/matrix_descriptor.cuh"

namespace octavo::sm90::backward {

// A configuration as a type: nvcc would generate a broken host stub for a kernel template whose
// argument is a value of class type.
template <Sm90BackwardConfig kConfig>
struct ConfigOf {
  static constexpr Sm90BackwardConfig value = kConfig;
};

// The parameters that the kernel of a configuration takes: only those that it reads.
template <bool kHasModifiers>
struct SelectParams {
  using Type = Sm90BackwardParams;
};
template <>
struct SelectParams<true> {
  using Type = ModifiedSm90BackwardParams;
};
template <class Config>
using ParamsOf = typename SelectParams<any(Config::value.modifiers)>::Type;

// The coordinates of a consumer thread. `group` says which 64 keys of the tile its warpgroup has.
// In a tile of scores the thread holds two of its warp's 16 rows (keys), lane / 4 and lane / 4 + 8,
// and two of every eight columns (queries).
struct ThreadCoord {
  u32 group, warp, lane;
};

template <class Config>
struct Geometry {
  static constexpr Sm90BackwardConfig C = Config::value;
  static constexpr SmemPlan S = smem_plan(C);
  static_assert(element_bytes(C.element) == 2, "all tensors are 16-bit");
  static_assert(C.block_m % 16 == 0 && cta_keys(C) % kRows == 0,
                "a block of queries is a whole number of wgmma steps, and a warpgroup has 64 keys");
  static_assert(C.head_dim % 16 == 0, "the columns are a whole number of wgmma steps");
  static_assert(divides_products(C) ||
                    (transposes_dq(C) ? C.head_dim : C.block_m) <= warpgroups(C) * kRows,
                "a warpgroup computes 64 rows of dQ^T, or of dQ");
  static_assert(!divides_products(C) || (C.block_m == kRows && cta_keys(C) == kRows),
                "with divides_products a block is 64 queries by 64 keys");
  static_assert(!is_pair(C) || (cta_dq_slices(C) == 2 && C.dq_buffers == 1),
                "each CTA of a pair has two slices of dQ, which share a buffer");
  static_assert(C.dq_buffers >= 1 && dq_writers(C) + ctas(C) <= 4,
                "three warps can write dQ, or send dS to the peer");

  static constexpr Panels kHead = head_panels(C);
  static constexpr Panels kDs = ds_panels(C);
  static constexpr Swizzle kHeadSwizzle = swizzle_of(kHead.row_bytes);
  static constexpr Swizzle kDsSwizzle = swizzle_of(kDs.row_bytes);
  static_assert(kDs.columns == kRows, "a panel of dS has the keys of a warpgroup");
  static constexpr int kScores = C.block_m / 2;    // a thread's scores of a block
  static constexpr int kColumns = C.head_dim / 2;  // a thread's registers of dK, and of dV
  static constexpr int kQuerySteps = C.block_m / 16;
  static constexpr int kDq = dq_registers(C);
  static constexpr int kEarlyPairs = 4;  // of row statistics loaded before a wait; 8 is slower
  static constexpr u32 kConsumerWarps = warpgroups(C) * 4;
  // The warps that arrive when they have stored their part of a dQ buffer, if they have any.
  static constexpr u32 kDqWarps = divides_products(C) ? 4 : kConsumerWarps;
  static constexpr u32 kDsWarps = divides_products(C) ? 4 : kConsumerWarps;
  // The warps that read dS of a buffer as an operand: in a pair those with dQ of both CTAs.
  static constexpr u32 kDsReaders = is_pair(C) ? 4 * ctas(C) : kConsumerWarps;
  // All threads that compute products.
  static constexpr int kProductThreads = threads(C) - kWarpgroup;

  static OCTAVO_DEVICE u32 smem(u32 offset) { return ptx::shared_base() + offset; }
  static OCTAVO_DEVICE u32 k_tile() { return smem(S.k); }
  static OCTAVO_DEVICE u32 v_tile() { return smem(S.v); }
  static OCTAVO_DEVICE u32 q_tile(u32 stage) { return smem(S.q) + stage * S.q_stage; }
  static OCTAVO_DEVICE u32 do_tile(u32 stage) { return smem(S.dout) + stage * S.q_stage; }
  static OCTAVO_DEVICE u32 ds_tile(u32 buffer) { return smem(S.ds) + buffer * S.ds_tile; }
  static OCTAVO_DEVICE u32 peer_k_tile() { return smem(S.peer_k); }
  static OCTAVO_DEVICE u32 peer_ds_tile(u32 buffer) { return smem(S.peer_ds) + buffer * S.ds_tile; }
  static OCTAVO_DEVICE u32 dq_tile(u32 buffer) { return smem(S.dq) + buffer * S.dq_tile; }
  static OCTAVO_DEVICE u32 lse_log2(u32 stage) {
    return smem(S.lse_log2) + stage * S.row_stats_bytes;
  }
  static OCTAVO_DEVICE u32 delta(u32 stage) { return smem(S.delta) + stage * S.row_stats_bytes; }

  static OCTAVO_DEVICE u32 block_slot(u32 stage) { return smem(S.blocks) + stage * 4; }
  // The ALiBi slope of a stage's head, in log2 units; only with alibi.
  static OCTAVO_DEVICE u32 slope_slot(u32 stage) { return smem(S.slopes) + stage * 4; }
  static OCTAVO_DEVICE u32 work_slot() { return smem(S.work); }

  static OCTAVO_DEVICE u32 barrier(u32 index) {
    return smem(S.barriers) + index * ptx::kMbarrierBytes;
  }
  static OCTAVO_DEVICE u32 k_full() { return barrier(0); }
  static OCTAVO_DEVICE u32 v_full() { return barrier(1); }
  static OCTAVO_DEVICE u32 tail_full() { return barrier(2); }
  static OCTAVO_DEVICE u32 q_full(u32 stage) { return barrier(3 + stage); }
  static OCTAVO_DEVICE u32 q_empty(u32 stage) { return barrier(3 + C.stages_q + stage); }
  static constexpr u32 kDoBarriers = 3 + 2 * C.stages_q;
  static OCTAVO_DEVICE u32 do_full(u32 stage) { return barrier(kDoBarriers + stage); }
  static OCTAVO_DEVICE u32 do_empty(u32 stage) {
    return barrier(kDoBarriers + C.stages_do + stage);
  }
  static constexpr u32 kDqBarriers = kDoBarriers + 2 * C.stages_do;
  static OCTAVO_DEVICE u32 dq_full(u32 writer) { return barrier(kDqBarriers + writer); }
  // Tells the warps that compute `half` of dQ's columns that the buffer is theirs.
  static OCTAVO_DEVICE u32 dq_empty(u32 half, u32 buffer) {
    return barrier(kDqBarriers + dq_writers(C) + half * C.dq_buffers + buffer);
  }
  static constexpr u32 kDsBarriers = kDqBarriers + dq_writers(C) + dq_halves(C) * C.dq_buffers;
  // The half that the `count`-th slice of dQ belongs to.
  static OCTAVO_DEVICE u32 dq_half(u32 count) {
    return static_cast<i32>(count % cta_dq_slices(C)) < dq_slices_of(C, 0) ? 0 : 1;
  }
  static OCTAVO_DEVICE u32 ds_full(u32 buffer) { return barrier(kDsBarriers + buffer); }
  static OCTAVO_DEVICE u32 ds_empty(u32 buffer) {
    return barrier(kDsBarriers + kDsBuffers + buffer);
  }
  // With divides_products.
  static OCTAVO_DEVICE u32 p_full(u32 buffer) {
    return barrier(kDsBarriers + 2 * kDsBuffers + buffer);
  }
  // In a pair.
  static OCTAVO_DEVICE u32 peer_ds_full(u32 buffer) {
    return barrier(kDsBarriers + 3 * kDsBuffers + buffer);
  }
  static OCTAVO_DEVICE u32 peer_k_full() { return barrier(kDsBarriers + 4 * kDsBuffers); }

  // The number of this CTA in its pair, and the address in the other CTA's shared memory.
  static OCTAVO_DEVICE u32 rank() { return is_pair(C) ? ptx::cluster_cta_rank() : 0; }
  static OCTAVO_DEVICE u32 of_peer(u32 address) { return ptx::map_to_cta(address, rank() ^ 1); }
};

}  // namespace octavo::sm90::backward
