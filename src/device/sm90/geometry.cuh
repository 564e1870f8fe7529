// SPDX-License-Identifier: Apache-2.0
// Sizes, shared-memory addresses, barriers and thread coordinates of the Hopper forward kernel,
// derived from its configuration.
#pragma once

#include "config/sm90_forward.h"
#include "device/core/block_range.cuh"
#include "device/core/score_rows.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/thread.cuh"
#include "device/sm90/column_tile.cuh"
#include "device/sm90/params.cuh"
#include "device/sm90/pipeline_state.cuh"
#include "device/tile/matrix_descriptor.cuh"

namespace octavo::sm90 {

template <class Config>
struct Geometry {
  static constexpr Sm90ForwardConfig C = Config::value;
  static constexpr SmemPlan S = smem_plan(C);
  static_assert(C.element >= Element::f16 && C.element <= Element::int8,
                "Q and K are 16-bit, FP8 or INT8");
  static_assert(is_8bit_qk(C) || C.v_element == C.element,
                "V has another type than Q and K only if those are 8-bit");
  static_assert(!is_8bit_qk(C) || (!has_other_modifiers(C) && C.head_dim_v == 0),
                "other modifiers, padding and other columns of V need 16-bit Q and K");
  static_assert(C.head_dim % qk_panels(C).columns == 0 && C.head_dim <= 512,
                "a row is a whole number of panels");
  static_assert(v_columns(C) % v_panels(C).columns == 0 && v_columns(C) <= kMaxTileColumns,
                "a row of V is a whole number of panels");
  static_assert(C.warpgroups >= 1 && C.warpgroups <= 4, "one to four consumer warpgroups");
  static constexpr int kStepKeys = is_8bit_pv(C) ? 32 : 16;  // keys of one wgmma of P V
  static_assert(C.block_n % kStepKeys == 0 && C.block_n <= 256,
                "a block of keys is a whole number of wgmma steps");
  static_assert((is_8bit_pv(C) ? C.pv_columns : v_columns(C)) + ones_columns(C) <= 256,
                "a wgmma has at most 256 columns");

  static constexpr bool kOnes = ones_columns(C) > 0;
  static constexpr Panels kQkPanels = qk_panels(C);
  static constexpr Swizzle kSwizzle = swizzle_of(kQkPanels.row_bytes);
  static constexpr u32 kRowBytes = kQkPanels.row_bytes;
  static constexpr int kScores = C.block_n / 2;         // a thread's scores of a block
  static constexpr int kScoreN8 = C.block_n / 8;        // in groups of eight columns: 4 scores each
  static constexpr int kORegisters = v_columns(C) / 2;  // a thread's registers of O
  static constexpr int kORegistersWithOnes = kORegisters + (kOnes ? 4 : 0);  // O and row sums
  static constexpr int kPvSteps = C.block_n / kStepKeys;

  using KvState = PipelineState<C.stages>;

  // P as the A operand of P V: four registers for each step of keys.
  struct P {
    u32 a[kPvSteps][4];
  };

  // A consumer thread. It holds rows lane / 4 (r = 0) and lane / 4 + 8 (r = 1) of its warp's 16
  // rows, and two of every eight columns.
  struct ThreadCoord {
    u32 group, warp, lane;
  };
  // Split-KV: the index of the thread's split in its CTA.
  static OCTAVO_DEVICE u32 kv_group(const ThreadCoord& t) { return t.group / C.row_groups; }

  // The 64 rows of a work tile that the thread's warpgroup computes.
  struct RowTile : ThreadCoord, ColumnTile<C> {
    SequenceSpan span;
    i32 sequence, batch, head;
    i32 first_row;      // in the sequence
    float alibi_slope;  // of the head; set where starts_at_diagonal
    OCTAVO_DEVICE i32 row(u32 r) const {
      return first_row + static_cast<i32>(this->warp * 16 + r * 8 + this->lane / 4);
    }
    OCTAVO_DEVICE i32 query(const Sm90ForwardParams& p, u32 r) const { return query_of(p, row(r)); }
  };
  // With pack_gqa a tile's rows are the queries of its first head, then of the next, and so on:
  // this splits a row number into query and head.
  static OCTAVO_DEVICE i32 query_of(const Sm90ForwardParams& p, i32 row) {
    return C.pack_gqa ? row & ((1 << p.query_bits) - 1) : row;
  }
  static OCTAVO_DEVICE i32 head_of(const Sm90ForwardParams& p, i32 row) {
    return C.pack_gqa ? row >> p.query_bits : 0;
  }

  // --- padded batches ---------------------------------------------------------------------------

  static OCTAVO_DEVICE SequenceSpan span(const Sm90ForwardParams& p, i32 sequence) {
    if constexpr (C.modifiers.padded)
      return padded_span(p, modifiers(p).padding, sequence);
    else
      return sequence_span(p, sequence);
  }
  // The rows of a batch entry that its tiles store. In a padded batch these are all rows of the
  // tensor: the tiles continue after the sequence with the right padding, then the left padding.
  static OCTAVO_DEVICE i32 stored_rows(const Sm90ForwardParams& p, const SequenceSpan& span) {
    return C.modifiers.padded && p.cu_seqlens_q == nullptr ? p.seqlen_q : span.seqlen_q;
  }
  // The tensor row of a tile row, which wraps around to the left padding.
  static OCTAVO_DEVICE i32 tensor_row(const Sm90ForwardParams& p, const SequenceSpan& span,
                                      i32 row) {
    const i32 index = span.q_begin + row;
    if (!C.modifiers.padded || p.cu_seqlens_q != nullptr) return index;
    return ptx::mask_term(index >= p.seqlen_q, false) ? index - p.seqlen_q : index;
  }

  // --- shared memory ----------------------------------------------------------------------------

  static OCTAVO_DEVICE u32 smem(u32 offset) { return ptx::shared_base() + offset; }
  static OCTAVO_DEVICE u32 q_tile(u32 group) { return smem(S.q) + group * S.q_tile; }
  static OCTAVO_DEVICE u32 o_tile(u32 group) { return smem(S.o) + group * S.o_tile; }
  static OCTAVO_DEVICE u32 bias_tile(u32 group) {
    return smem(S.bias) + group * bias_tile_bytes(C);
  }
  static OCTAVO_DEVICE u32 mask_tile(u32 group) {
    return smem(S.mask) + group * mask_tile_bytes(C);
  }
  static OCTAVO_DEVICE u32 mask_bits(u32 group) {
    return smem(S.mask_bits) + group * mask_bits_bytes(C);
  }
  static OCTAVO_DEVICE u32 k_tile(u32 stage) { return smem(S.k) + stage * S.k_stage; }
  static OCTAVO_DEVICE u32 v_tile(u32 stage) { return smem(S.v) + stage * S.v_stage; }
  static OCTAVO_DEVICE u32 listed(u32 stage) { return smem(S.listed) + stage * listed_bytes(C); }
  static OCTAVO_DEVICE u32 k_scales(u32 stage) {
    return smem(S.k_scales) + stage * S.k_scales_stage;
  }
  static OCTAVO_DEVICE u32 v_scales(u32 group) {
    return smem(S.v_scales) + group * (C.head_dim * 4);
  }

  static OCTAVO_DEVICE u32 barrier(u32 index) {
    return smem(S.barriers) + index * ptx::kMbarrierBytes;
  }
  static OCTAVO_DEVICE u32 q_full(u32 group) { return barrier(group); }
  static OCTAVO_DEVICE u32 q_empty(u32 group) { return barrier(q_tiles(C) + group); }
  static OCTAVO_DEVICE u32 kv_barrier(u32 kind, u32 stage) {
    return barrier(2 * q_tiles(C) + kind * kv_buffers(C) * k_slices(C) + stage);
  }
  static OCTAVO_DEVICE u32 k_full(u32 stage) { return kv_barrier(0, stage); }
  static OCTAVO_DEVICE u32 v_full(u32 stage) { return kv_barrier(1, stage); }
  static OCTAVO_DEVICE u32 k_empty(u32 stage) { return kv_barrier(2, stage); }
  static OCTAVO_DEVICE u32 v_empty(u32 stage) { return kv_barrier(3, stage); }
  // After those of K and V, one barrier of each kind for each warpgroup.
  static OCTAVO_DEVICE u32 group_barrier(u32 kind, u32 group) {
    return kv_barrier(4, 0) + (kind * C.warpgroups + group) * ptx::kMbarrierBytes;
  }
  static OCTAVO_DEVICE u32 tail_full() { return group_barrier(0, 0); }  // persistent kernel
  static OCTAVO_DEVICE u32 partials_full(u32 group) { return group_barrier(0, group); }  // split-KV
  static OCTAVO_DEVICE u32 score_full(u32 group) { return group_barrier(1, group); }
  static OCTAVO_DEVICE u32 score_empty(u32 group) { return group_barrier(2, group); }
  static OCTAVO_DEVICE u32 mask_loaded(u32 group) { return group_barrier(3, group); }

  // The additional parameters of kernels with modifiers or padding.
  static OCTAVO_DEVICE const ModifierParams& modifiers(const Sm90ForwardParams& p) {
    return static_cast<const Sm90ForwardModifiedParams&>(p).modifiers;
  }
  static OCTAVO_DEVICE const BlockMaskParams& block_mask(const Sm90ForwardParams& p) {
    return static_cast<const Sm90ForwardBlockMaskParams&>(p).block_mask;
  }
  // The additional parameters of kernels with 8-bit Q and K.
  static OCTAVO_DEVICE const Sm90Forward8BitParams& params_8bit(const Sm90ForwardParams& p) {
    return static_cast<const Sm90Forward8BitParams&>(p);
  }
};

}  // namespace octavo::sm90
