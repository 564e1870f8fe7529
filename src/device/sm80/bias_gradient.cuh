// SPDX-License-Identifier: Apache-2.0
// The gradient of a bias on mma.sync: dS, summed over the sequences and heads that share an entry.
//
// A CTA owns block_m queries by block_n keys of one entry of the bias, in rows and columns of the
// tensors, padding included. It visits every sequence and head for which the entry holds, in order,
// and recomputes S and dP there (device/sm80/backward.cuh has the formulas). The sums stay in
// registers: no two CTAs add to the same element, and the result has the same bits in every run.
//
//   shared memory    what                      bytes
//   own              Q and dO of a head        sm80::own_bytes
//   stage            K and V                   sm80::stage_bytes
//
//   step      CTA barrier | load Q, dO, K, V | wait | CTA barrier | s | p | dp | ds | sums += ds
//
//   barrier                  becomes true
//   bar.sync 0, first        the last step's tiles are not read
//   bar.sync 0, second       the tiles are loaded
#pragma once

#include "config/sm80_backward.h"
#include "device/backward/params.cuh"
#include "device/core/block_range.cuh"
#include "device/core/find_block.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/vector_memory.cuh"
#include "device/sm80/backward_geometry.cuh"
#include "device/sm80/backward_modifiers.cuh"
#include "device/sm80/backward_products.cuh"

namespace octavo::sm80 {

template <class Config>
struct BiasGradientKernel {
  using G = BackwardGeometry<Config>;
  using Products = BackwardProducts<G>;
  using Modifiers = BackwardModifiers<G>;
  using WorkTile = typename G::WorkTile;
  using Scores = typename G::Scores;
  using Stats = typename Products::Stats;
  static constexpr Sm80BackwardConfig C = G::C;
  static_assert(C.pass == BackwardPass::dbias && C.modifiers.bias,
                "the kernel of a bias gradient has one");
  static_assert(C.warps_d == 1 && C.stages == 1 && !C.own_in_registers,
                "a warp has whole rows of the tile, and each step loads all operands");

  // The tile of the tensor's rows and columns that the CTA owns.
  struct Owned {
    i32 row, column;
  };

  template <int kRows>
  static OCTAVO_DEVICE void load_rows(const typename G::Tile& to, const void* from,
                                      const Strides& s, i32 head, i32 first, i32 rows,
                                      const BackwardParams& p, const WorkTile& tile) {
    const i64 offset = tile.batch * s.batch + head * s.head + first * s.row;
    const GlobalRows source{static_cast<const u8*>(from) + offset * 2, s.row * 2, p.head_dim * 2};
    RowLoader<kRows, G::kThreads, C.load_bytes, row_bytes(C)>(source, tile.thread).load(to, rows);
  }
  // Padding is loaded too: a row or a key of it affects only scores that are hidden.
  static OCTAVO_DEVICE void load_operands(const BackwardParams& p, const WorkTile& tile,
                                          const Owned& owned) {
    const i32 rows = p.seqlen_q - owned.row, keys = p.seqlen_kv - owned.column;
    const i32 head_kv = tile.head / p.heads_per_kv;
    load_rows<G::kOwnRows>(G::own_tile(0), p.q, p.q_strides, tile.head, owned.row, rows, p, tile);
    load_rows<G::kOwnRows>(G::own_tile(1), p.dout, p.dout_strides, tile.head, owned.row, rows, p,
                           tile);
    load_rows<G::kStreamedRows>(G::streamed_tile(0, 0), p.k, p.k_strides, head_kv, owned.column,
                                keys, p, tile);
    load_rows<G::kStreamedRows>(G::streamed_tile(1, 0), p.v, p.v_strides, head_kv, owned.column,
                                keys, p, tile);
    ptx::cp_async_commit();
  }

  // Rows outside the sequence get those of one inside; their scores are hidden.
  static OCTAVO_DEVICE void load_stats(Stats& stats, const BackwardParams& p,
                                       const WorkTile& tile) {
    const i64 first = (static_cast<i64>(tile.sequence) * p.heads_q + tile.head) * p.stats_rows;
    OCTAVO_UNROLL
    for (int m = 0; m < G::kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const i32 own = tile.first_row + static_cast<i32>(tile.row(m, r));
        const i64 row = first + max_of(min_of(own, tile.span.seqlen_q - 1), 0);
        stats.lse_log2[m][r] = ptx::load_global_f32(p.lse_log2 + row);
        stats.delta[m][r] = ptx::load_global_f32(p.delta + row);
      }
    }
  }

  // Whether some row of the tile sees some key of it. Both ends of what a row sees grow with it.
  static OCTAVO_DEVICE bool has_scores(const WorkTile& tile, i32 first_key) {
    const i32 first = max_of(tile.first_row, 0);
    const i32 last = min_of(tile.first_row + G::kOwnRows, tile.span.seqlen_q) - 1;
    if (first > last || tile.span.seqlen_kv <= 0) return false;
    return first_key < key_limits(tile.mask, tile.span, last).end &&
           first_key + G::kStreamedRows > key_limits(tile.mask, tile.span, first).begin;
  }

  // Adds dS of one sequence and head.
  static OCTAVO_DEVICE void add(Scores& sums, const BackwardParams& p, const WorkTile& tile,
                                const Owned& owned) {
    const i32 first_key = owned.column - tile.span.kv_begin;
    if (!has_scores(tile, first_key)) return;
    i32 bits = -1;
    if constexpr (C.modifiers.block_mask != 0) {
      constexpr int kSize = C.modifiers.block_mask;
      static_assert(kSize % G::kOwnRows == 0 && kSize % G::kStreamedRows == 0,
                    "a tile is in one block of the mask");
      const FoundBlock found = find_block(G::block_mask(p), tile.batch, tile.head,
                                          owned.row / kSize, owned.column / kSize);
      if (!ptx::mask_term(found.is_listed, true)) return;
      bits = found.bits;
    }
    ptx::cta_sync();
    load_operands(p, tile, owned);
    Stats stats;
    load_stats(stats, p, tile);
    ptx::cp_async_wait<0>();
    ptx::cta_sync();
    const typename G::OwnFragments none[1] = {};
    Scores s, ds;
    typename G::PackedScores unused;
    Products::row_products(s, none[0], 0, tile, 0);
    Modifiers::find_p(s, unused, stats, p, tile, {tile.head, first_key, 0, bits});
    Products::row_products(ds, none[0], 1, tile, 0);
    Modifiers::find_ds(ds, s, stats, tile, 0);
    OCTAVO_UNROLL
    for (int m = 0; m < G::kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int n = 0; n < G::kTilesN; ++n) {
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) sums.x[m][n][e] += ds.x[m][n][e];
      }
    }
  }

  static OCTAVO_DEVICE void store(const Scores& sums, const BiasGradientParams& p,
                                  const WorkTile& tile, const Owned& owned, i64 entry) {
    OCTAVO_UNROLL
    for (int m = 0; m < G::kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const i32 row = owned.row + static_cast<i32>(tile.row(m, r));
        OCTAVO_UNROLL
        for (int n = 0; n < G::kTilesN; ++n) {
          OCTAVO_UNROLL
          for (int e = 0; e < 2; ++e) {
            const i32 column = owned.column + n * 8 + static_cast<i32>(tile.lane % 4 * 2) + e;
            if (ptx::mask_term(row < p.seqlen_q, true) &&
                ptx::mask_term(column < p.seqlen_kv, true))
              store_element(p, entry + row * p.dbias_strides.row + column, sums.x[m][n][r * 2 + e]);
          }
        }
      }
    }
  }
  static OCTAVO_DEVICE void store_element(const BiasGradientParams& p, i64 at, float x) {
    if (p.dbias_element == Element::f32)
      ptx::store_global_f32(static_cast<float*>(p.dbias) + at, x);
    else
      ptx::store_global_b16(
          static_cast<u16*>(p.dbias) + at,
          static_cast<u16>(p.dbias_element == Element::f16 ? ptx::f16x2_from_f32(x, 0.0f)
                                                           : ptx::bf16x2_from_f32(x, 0.0f)));
  }

  static OCTAVO_DEVICE void entry(const BiasGradientParams& p) {
    const i32 index = ptx::block_index_x();
    const Owned owned{index / p.n_blocks % p.m_blocks * G::kOwnRows,
                      index % p.n_blocks * G::kStreamedRows};
    const i32 of_bias = index / p.n_blocks / p.m_blocks;
    const i32 batch = of_bias / p.bias_heads, head = of_bias % p.bias_heads;
    WorkTile tile;
    tile.warp = ptx::warp_index();
    tile.warp_d = 0;
    tile.lane = ptx::lane_index();
    tile.thread = ptx::thread_index();
    tile.mask = {p.bottom_right, p.window_left, p.window_right};
    Scores sums;
    OCTAVO_UNROLL
    for (int m = 0; m < G::kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int n = 0; n < G::kTilesN; ++n) {
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) sums.x[m][n][e] = 0;
      }
    }
    const i32 first_head = p.bias_heads == 1 ? 0 : head;
    const i32 end_head = p.bias_heads == 1 ? p.heads_q : head + 1;
    const i32 end_batch = p.bias_batch == 1 ? p.sequences : batch + 1;
    OCTAVO_ROLLED
    for (tile.batch = p.bias_batch == 1 ? 0 : batch; tile.batch < end_batch; ++tile.batch) {
      tile.sequence = tile.batch;
      if constexpr (C.modifiers.padded)
        tile.span = padded_span<true, /*kOverlaps=*/false>(p, p.modifiers.padding, tile.sequence);
      else
        tile.span = {0, p.seqlen_q, 0, p.seqlen_kv};
      tile.first_row = owned.row - tile.span.q_begin;
      OCTAVO_ROLLED
      for (tile.head = first_head; tile.head < end_head; ++tile.head) add(sums, p, tile, owned);
    }
    store(sums, p, tile, owned, batch * p.dbias_strides.batch + head * p.dbias_strides.head);
  }
};

template <class Config>
OCTAVO_KERNEL(threads(Config::value), 1)
sm80_bias_gradient(const OCTAVO_GRID_CONSTANT BackwardParamsOf<Config> p) {
  BiasGradientKernel<Config>::entry(p);
}

}  // namespace octavo::sm80
