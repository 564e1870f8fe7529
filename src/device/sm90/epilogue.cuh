// SPDX-License-Identifier: Apache-2.0
// The epilogue of a tile: divides O by the row sums, stores it, and writes LSE and amax.
//
//   row             O                LSE
//   sees a key      O / row sum      ref_max + log of the row sum; a sink adds to that sum
//   sees no key     0                -infinity, or the sink
//   padding         0                -infinity
#pragma once

#include "device/core/output.cuh"
#include "device/core/score_rows.cuh"
#include "device/ptx/fence.cuh"
#include "device/ptx/stmatrix.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/tma.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/modifiers.cuh"
#include "device/sm90/output_element.cuh"

namespace octavo::sm90 {

// Synchronises one warpgroup, by named barrier 1 + group (0 is the CTA's).
template <class ThreadCoord>
OCTAVO_DEVICE void warpgroup_sync(const ThreadCoord& t) {
  ptx::named_barrier_sync(static_cast<int>(1 + t.group), kWarpgroup);
}

template <class G, class N>
struct Epilogue {
  using State = typename N::State;
  using Rows = typename N::Rows;
  using ThreadCoord = typename G::ThreadCoord;
  using RowTile = typename G::RowTile;
  using Out = OutputElement<G>;
  static constexpr Sm90ForwardConfig C = G::C;
  static constexpr Panels kPanels = v_panels(C);

  // Divides O by the row sums and writes LSE.
  static OCTAVO_DEVICE void finish(State& state, const Rows& rows, const Sm90ForwardParams& p,
                                   const RowTile& tile) {
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      float ref_max = ref_max_log2<G>(rows, r), sum = N::row_sum(state, rows, r);
      N::normalize_row(state, rows, r, divisor_of(ref_max, sum, p, tile));
      const i32 row = tile.row(r);
      if constexpr (C.modifiers.padded) {
        if (ptx::mask_term(row >= tile.span.seqlen_q, false)) {
          clear_row<G::kORegisters>(state.o, r);
          sum = 0;
        }
      }
      if (row < G::stored_rows(p, tile.span)) store_lse(ref_max, sum, p, tile, row);
    }
    N::scale_o(state, tile);
  }
  // Adds the sink to the sum of a row, and returns what divides its O.
  static OCTAVO_DEVICE float divisor_of(float& ref_max, float& sum, const Sm90ForwardParams& p,
                                        const RowTile& tile) {
    if constexpr (C.modifiers.sinks) return ScoreModifier<G>::add_sink(p, tile.head, ref_max, sum);
    return sum;
  }

  // `sum`: the row's sum, already reduced over the quad.
  static OCTAVO_DEVICE void store_lse(float ref_max, float sum, const Sm90ForwardParams& p,
                                      const RowTile& tile, i32 row) {
    if (p.lse == nullptr || tile.lane % 4 != 0 || tile.first_column > 0) return;
    constexpr float kSumLog2 = N::kPLog2 + N::kSumLog2;
    const float lse =
        C.modifiers.bias ? lse_with_bias(ref_max, sum, kSumLog2) : lse_of(ref_max, sum, kSumLog2);
    ptx::store_global_f32(p.lse + tile.batch * p.lse_strides.batch +
                              tile.head * p.lse_strides.head +
                              G::tensor_row(p, tile.span, row) * p.lse_strides.row,
                          lse);
  }

  // Raises the stored amax to the largest |O| of the warp's rows that exist. Columns beyond
  // head_dim_v hold 0 or values that are not finite, which do not count.
  static OCTAVO_DEVICE void store_amax(const State& state, const Sm90ForwardParams& p,
                                       const RowTile& tile) {
    float amax = 0;
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      if (tile.row(r) >= tile.span.seqlen_q) continue;
      OCTAVO_UNROLL
      for (int i = 0; i < G::kORegisters / 4; ++i) {
        amax = larger_magnitude(amax, state.o[i * 4 + r * 2]);
        amax = larger_magnitude(amax, state.o[i * 4 + r * 2 + 1]);
      }
    }
    amax = largest_of_lanes<5>(amax);
    if (tile.lane == 0) update_amax(Out::params(p), tile.sequence, tile.head, amax);
  }

  static OCTAVO_DEVICE void store_o(const State& state, const Sm90ForwardParams& p,
                                    const RowTile& tile) {
    // The tile's last rows may be the next sequence's, or padding, which may be elsewhere in the
    // tensor.
    [[maybe_unused]] const bool crosses_end = (C.modifiers.padded || p.cu_seqlens_q != nullptr) &&
                                              tile.first_row + kRows > tile.span.seqlen_q;
    if constexpr (stores_o_by_tma(C)) {
      if (!crosses_end) return store_by_tma(state, p, tile);
    }
    Out::store_tile(state.o, p, tile);
  }

  // For a tile whose rows see no key or are padding.
  static OCTAVO_DEVICE void store_empty(const Sm90ForwardParams& p, const RowTile& tile) {
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      const i32 row = tile.row(r);
      if ((may_shift_rows(C) && row < 0) || row >= G::stored_rows(p, tile.span)) continue;
      u8* const out = Out::row_address(p, tile, row);
      for (i32 column = static_cast<i32>(tile.lane % 4 * 2); column < Out::columns(p, tile);
           column += 8)
        Out::store_pair(out + column * element_bytes(C.output.element), 0, 0);
      float ref_max = kLowest, sum = 0;
      if (row < tile.span.seqlen_q) divisor_of(ref_max, sum, p, tile);
      store_lse(ref_max, sum, p, tile, row);
    }
  }

  // Stores through shared memory and TMA, which drops rows beyond the tensor. Returns before the
  // store has completed; o_tile may be rewritten after wait_for_store.
  static OCTAVO_DEVICE void store_by_tma(const State& state, const Sm90ForwardParams& p,
                                         const RowTile& tile) {
    wait_for_store(tile);
    write_o_tile(state, tile);
    ptx::fence_proxy_async();
    warpgroup_sync(tile);
    if (tile.warp == 0 && tile.lane == 0) {
      OCTAVO_UNROLL
      for (int panel = 0; panel < kPanels.count; ++panel)
        ptx::tma_store(
            &p.o, G::o_tile(tile.group) + panel * kRows * kPanels.row_bytes,
            {panel * kPanels.columns, tile.span.q_begin + tile.first_row, tile.head, tile.batch});
      ptx::bulk_commit();
    }
  }
  // The warpgroup's 64 rows into shared memory, swizzled as the tensor map says.
  static OCTAVO_DEVICE void write_o_tile(const State& state, const RowTile& tile) {
    const u32 row = tile.warp * 16 + tile.lane % 16;
    OCTAVO_UNROLL
    for (int i = 0; i < v_columns(C) / 16; ++i) {
      u32 x[4];
      OCTAVO_UNROLL
      for (int e = 0; e < 4; ++e)
        x[e] = Out::pack(state.o[i * 8 + e * 2], state.o[i * 8 + e * 2 + 1]);
      const u32 column = i * 16 + tile.lane / 16 * 8;
      const u32 panel = i * 16 / kPanels.columns;
      const u32 offset = row * kPanels.row_bytes + column % kPanels.columns * 2;
      ptx::stmatrix_x4(G::o_tile(tile.group) + panel * kRows * kPanels.row_bytes +
                           swizzled(swizzle_of(kPanels.row_bytes), offset),
                       x);
    }
  }
  // By the whole warpgroup.
  static OCTAVO_DEVICE void wait_for_store(const ThreadCoord& t) {
    if (t.warp == 0 && t.lane == 0) ptx::bulk_wait_read<0>();
    warpgroup_sync(t);
  }
};

}  // namespace octavo::sm90
