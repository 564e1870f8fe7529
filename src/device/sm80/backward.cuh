// SPDX-License-Identifier: Apache-2.0
// Backward attention on mma.sync, for Ampere, Ada and later chips. With s = q k^T:
//
//   p  = exp2(s * scale_log2 - lse_log2)      lse_log2 and delta: device/backward/row_stats.cuh
//   ds = p * (do v^T - delta)
//   dv = p^T do,  dk = scale * ds^T q,  dq = scale * ds k
//
// Two launches share this kernel. In each a CTA owns a block of rows, keeps their gradients in
// registers, and streams blocks of the other side through shared memory, so that no two CTAs add
// to the same element: no atomics, and the same bits in every run.
//
//   pass  owned rows            streamed rows                                    products
//   dkv   block_n keys: K, V    block_m queries of every head of the group:      4 a step
//                               Q, dO, lse_log2, delta
//   dq    block_m queries:      block_n keys: K, V                               3 a step
//         Q, dO
//
// With a block mask only the streamed blocks are visited that the mask shows to the owned rows
// (device/sm80/backward_cursor.cuh).
//
// `warps` warps divide the owned rows. `warps_d` warps with the same owned rows divide the columns
// of the gradients, which would not fit one warp's registers: each also computes a part of the
// scores, and they exchange p and ds through shared memory.
//
//   shared memory    what                                           bytes
//   own              K and V, or Q and dO; the gradients at the end sm80::own_bytes
//   stage[stages]    Q and dO, or K and V                           sm80::stage_bytes each
//   weights          p and ds, if warps_d > 1                       sm80::exchange_bytes
//   stats[stages]    lse_log2, delta of the streamed queries (dkv)  sm80::stats_bytes each
//
//   step j    copies in flight   stage[j+1]
//             every warp         wait stage[j] | CTA barrier | start stage[j+1] | s | p | dp | ds |
//                                mask | exchange | dv += p^T do | dk += ds^T q  (or dq += ds k)
//
//   barrier                               arrives and waits     becomes true
//   bar.sync 0 at the start of a step     all warps             the stage is loaded; the last
//   step's
//                                                               stage and weights are not read
//   bar.sync 1 + warp (warps_d > 1)       warps of the same     their weights are stored
//                                         owned rows
//   bar.sync 0 twice in the epilogue      all warps             the owned rows are not read; the
//                                                               gradients are stored there
#pragma once

#include "config/sm80_backward.h"
#include "device/backward/params.cuh"
#include "device/core/block_range.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "device/sm80/backward_cursor.cuh"
#include "device/sm80/backward_epilogue.cuh"
#include "device/sm80/backward_geometry.cuh"
#include "device/sm80/backward_modifiers.cuh"
#include "device/sm80/backward_products.cuh"

namespace octavo::sm80 {

template <class Config>
struct BackwardKernel {
  using G = BackwardGeometry<Config>;
  using Products = BackwardProducts<G>;
  using WorkTile = typename G::WorkTile;
  using Stats = typename Products::Stats;
  static constexpr Sm80BackwardConfig C = G::C;

  using Cursor = CursorOf<G>;  // the streamed block of a step

  static OCTAVO_DEVICE i32 first_head(const BackwardParams& p, const WorkTile& tile) {
    return G::kOwnsKeys ? tile.head * p.heads_per_kv : tile.head / p.heads_per_kv;
  }
  static OCTAVO_DEVICE i32 streamed_heads(const BackwardParams& p) {
    return G::kOwnsKeys ? p.heads_per_kv : 1;
  }

  template <int kRows>
  static OCTAVO_DEVICE void load_rows(const typename G::Tile& to, const void* from,
                                      const Strides& s, i32 head, i32 token, i32 rows,
                                      const BackwardParams& p, const WorkTile& tile) {
    const i64 offset = tile.batch * s.batch + head * s.head + token * s.row;
    const GlobalRows source{static_cast<const u8*>(from) + offset * 2, s.row * 2, p.head_dim * 2};
    RowLoader<kRows, G::kThreads, C.load_bytes, row_bytes(C)>(source, tile.thread).load(to, rows);
  }

  static OCTAVO_DEVICE void load_own(const BackwardParams& p, const WorkTile& tile) {
    const i32 token = tile.span.q_begin + tile.first_row;
    const i32 rows = tile.span.seqlen_q - tile.first_row;
    const auto load = [&](int operand, const void* from, const Strides& s) {
      load_rows<G::kOwnRows>(G::own_tile(operand), from, s, tile.head, token, rows, p, tile);
    };
    if constexpr (G::kOwnsKeys) {
      load(0, p.k, p.k_strides);
      load(1, p.v, p.v_strides);
    } else {
      load(0, p.q, p.q_strides);
      load(1, p.dout, p.dout_strides);
    }
  }

  // Starts the copies of a step and advances. Past the last step it only commits, so that the count
  // of groups stays the same.
  static OCTAVO_DEVICE void load_step(Cursor& next, i32 end_head, const BackwardParams& p,
                                      const WorkTile& tile, const BlockRange& range, int stage) {
    if (next.head < end_head) {
      const i32 token = tile.span.kv_begin + next.row;
      const i32 rows = tile.span.seqlen_kv - next.row;
      const auto load = [&](int operand, const void* from, const Strides& s) {
        load_rows<G::kStreamedRows>(G::streamed_tile(operand, stage), from, s, next.head, token,
                                    rows, p, tile);
      };
      if constexpr (G::kOwnsKeys) {
        load(0, p.q, p.q_strides);
        load(1, p.dout, p.dout_strides);
        load_stats(next, p, tile, stage);
      } else {
        load(0, p.k, p.k_strides);
        load(1, p.v, p.v_strides);
      }
      next.advance(range, p, tile);
    }
    ptx::cp_async_commit();
  }

  // Whole blocks: the arrays are padded. The first threads copy lse_log2, the next delta.
  static OCTAVO_DEVICE void load_stats(const Cursor& at, const BackwardParams& p,
                                       const WorkTile& tile, int stage) {
    constexpr u32 kChunks = C.block_m / 4;
    static_assert(2 * kChunks <= G::kThreads,
                  "a thread copies at most one chunk of row statistics");
    if (tile.thread >= 2 * kChunks) return;
    const float* const from = tile.thread < kChunks ? p.lse_log2 : p.delta;
    const i64 row = (static_cast<i64>(tile.sequence) * p.heads_q + at.head) * p.stats_rows + at.row;
    ptx::cp_async_16(G::stats_address(stage) + tile.thread * 16,
                     from + row + tile.thread % kChunks * 4, true);
  }

  // Waits for the step's stage and starts the copies of a later one.
  static OCTAVO_DEVICE void begin_step(Cursor& next, i32 end_head, const BackwardParams& p,
                                       const WorkTile& tile, const BlockRange& range, int stage) {
    if constexpr (C.stages == 1) {
      ptx::cta_sync();  // every warp is done with the only stage
      load_step(next, end_head, p, tile, range, 0);
    }
    ptx::cp_async_wait<max_of(C.stages - 2, 0)>();
    ptx::cta_sync();
    if constexpr (C.stages > 1)
      load_step(next, end_head, p, tile, range, stage == 0 ? C.stages - 1 : stage - 1);
  }

  // Rounds p and ds to A operands of all columns of the block.
  template <class AnyScores>
  static OCTAVO_DEVICE void make_weights(typename G::Weights (&weights)[2], const AnyScores& p,
                                         const typename G::Scores& ds, const WorkTile& tile) {
    if constexpr (C.warps_d == 1) {
      if constexpr (G::kOwnsKeys) Products::pack(weights[1], p);
      Products::pack(weights[0], ds);
    } else {
      if constexpr (G::kOwnsKeys) Products::store_weights(p, 1, tile);
      Products::store_weights(ds, 0, tile);
      ptx::named_barrier_sync(1 + static_cast<int>(tile.warp), 32 * C.warps_d);
      if constexpr (G::kOwnsKeys) Products::load_weights(weights[1], 1, tile);
      Products::load_weights(weights[0], 0, tile);
    }
  }

  // The weights of a block with modifiers.
  static OCTAVO_DEVICE void modified_weights(typename G::Weights (&weights)[2],
                                             const typename G::OwnFragments (&own)[2],
                                             const Stats& stats, const BackwardParams& params,
                                             const WorkTile& tile, const Cursor& at, int stage) {
    using Modifiers = BackwardModifiers<G>;
    typename G::Scores p, ds;
    typename G::PackedScores packed;
    Products::row_products(p, own[0], 0, tile, stage);
    const i32 query_head = G::kOwnsKeys ? at.head : tile.head;
    Modifiers::find_p(p, packed, stats, params, tile, {query_head, at.row, stage, at.bits()});
    Products::row_products(ds, own[1], 1, tile, stage);
    Modifiers::find_ds(ds, p, stats, tile, stage);
    make_weights(weights, packed, ds, tile);
  }

  // The block of streamed rows at `at`.
  static OCTAVO_DEVICE void block(typename G::Gradient (&gradients)[G::kGradients],
                                  const typename G::OwnFragments (&own)[2], const Stats& stats,
                                  const BlockRange& range, const BackwardParams& params,
                                  const WorkTile& tile, const Cursor& at, int stage) {
    const i32 first = at.row;
    typename G::Weights weights[2];
    if constexpr (any(C.modifiers)) {
      modified_weights(weights, own, stats, params, tile, at, stage);
    } else {
      typename G::Scores p, ds;
      Products::row_products(p, own[0], 0, tile, stage);
      Products::exponentiate(p, stats, params.scale_log2, tile, stage);
      Products::row_products(ds, own[1], 1, tile, stage);
      Products::score_gradients(ds, p, stats, tile, stage);
      if (range.needs_mask(first, G::kStreamedRows)) Products::apply_mask(p, ds, tile, first);
      make_weights(weights, p, ds, tile);
    }
    if constexpr (G::kOwnsKeys) Products::accumulate(gradients[1], weights[1], 1, tile, stage);
    Products::accumulate(gradients[0], weights[0], 0, tile, stage);
  }

  static OCTAVO_DEVICE void clear(typename G::Gradient (&gradients)[G::kGradients]) {
    OCTAVO_UNROLL
    for (int i = 0; i < G::kGradients; ++i) {
      OCTAVO_UNROLL
      for (int m = 0; m < G::kTilesM; ++m) {
        OCTAVO_UNROLL
        for (int n = 0; n < G::kTilesD; ++n) {
          OCTAVO_UNROLL
          for (int e = 0; e < 4; ++e) gradients[i].x[m][n][e] = 0;
        }
      }
    }
  }

  static OCTAVO_DEVICE void run_tile(const BackwardParams& p, const WorkTile& tile,
                                     const BlockRange& range) {
    Cursor next{first_head(p, tile), range.begin};
    const i32 end_head = range.begin < range.end ? next.head + streamed_heads(p) : next.head;
    next.start(end_head, range, p, tile);
    Cursor at = next;
    if (at.head < end_head) load_own(p, tile);
    OCTAVO_UNROLL
    for (int stage = 0; stage < C.stages - 1; ++stage)
      load_step(next, end_head, p, tile, range, stage);
    typename G::Gradient gradients[G::kGradients];
    clear(gradients);
    Stats stats;
    if constexpr (!G::kOwnsKeys) Products::load_row_stats(stats, p, tile);
    typename G::OwnFragments own[2];
    int stage = 0;
    OCTAVO_UNROLL_BY(1)
    for (bool is_first = true; at.head < end_head; at.advance(range, p, tile), is_first = false) {
      begin_step(next, end_head, p, tile, range, stage);
      if constexpr (C.own_in_registers) {
        if (is_first) Products::load_own(own[0], 0, tile);
        if (is_first) Products::load_own(own[1], 1, tile);
      }
      block(gradients, own, stats, range, p, tile, at, stage);
      stage = stage + 1 == C.stages ? 0 : stage + 1;
    }
    ptx::cp_async_wait<0>();
    BackwardEpilogue<G>::store_gradients(gradients, p, tile);
  }

  static OCTAVO_DEVICE void entry(const BackwardParams& p) {
    const i32 index = ptx::block_index_x();
    const i32 heads = G::kOwnsKeys ? p.heads_kv : p.heads_q;
    // Under a causal mask the first keys and the last queries have the most work: they start first.
    const i32 block = G::kOwnsKeys ? index % p.own_tiles : p.own_tiles - 1 - index % p.own_tiles;
    WorkTile tile;
    tile.first_row = block * G::kOwnRows;
    tile.head = index / p.own_tiles % heads;
    tile.sequence = index / p.own_tiles / heads;
    tile.batch = p.cu_seqlens_q == nullptr ? tile.sequence : 0;
    if constexpr (C.modifiers.padded)
      tile.span = padded_span<true, /*kOverlaps=*/false>(p, G::modifiers(p).padding, tile.sequence);
    else
      tile.span = sequence_span(p, tile.sequence);
    tile.mask = {p.bottom_right, p.window_left, p.window_right};
    if constexpr (G::kOwnsKeys) {
      tile.span = {tile.span.kv_begin, tile.span.seqlen_kv, tile.span.q_begin, tile.span.seqlen_q};
      tile.mask = {p.bottom_right, p.window_right, p.window_left};
    }
    tile.thread = ptx::thread_index();
    if constexpr (C.modifiers.padded) BackwardEpilogue<G>::clear_padding(p, tile);
    if (tile.first_row >= tile.span.seqlen_q) return;
    const u32 warp = ptx::warp_index();
    tile.warp = warp % C.warps;
    tile.warp_d = C.warps_d == 1 ? 0 : warp / C.warps;
    tile.lane = ptx::lane_index();
    run_tile(p, tile,
             block_range(tile.mask, tile.span, tile.first_row, G::kOwnRows, G::kStreamedRows));
  }
};

template <class Config>
OCTAVO_KERNEL(threads(Config::value), 1)
sm80_backward(const OCTAVO_GRID_CONSTANT BackwardParamsOf<Config> p) {
  BackwardKernel<Config>::entry(p);
}

}  // namespace octavo::sm80
