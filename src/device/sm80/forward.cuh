// SPDX-License-Identifier: Apache-2.0
// Forward attention on mma.sync: o = softmax(scale * q k^T) v, for Ampere, Ada and later chips.
//
// A CTA owns block_m query rows of one head, and all columns of O, or half of them if there are
// more than 256. warps_m warps divide the rows; warps_n warps divide the keys of every step among
// themselves, each with its own running maximum, sum and O, which are combined through shared
// memory at the end (small grids need the parallelism).
//
//   shared memory   what                                     bytes
//   q               block_m rows                             sm80::q_bytes
//   kv[stages]      warps_n * block_n rows of K, then of V   sm80::kv_stage_bytes each
//   then, from offset 0: partial results of the warps with warp_n > 0, then the tile of O
//
//   time (stages = 2)   copies in flight        every warp
//   step j              kv[j+1]                 wait kv[j], CTA barrier, start kv[j+1],
//                                               s = q k^T, modifiers, mask, softmax, o += p v
//   The one barrier of a step has two effects: the copies of kv[j] by all threads have arrived, and
//   all warps are done with kv[j-1], whose buffer the copies of the step overwrite.
//
//   named barrier          arrive                     wait         what becomes true
//   full[s] (2 + s)        producer warps             math warps   the step's K and V have arrived
//   empty[s] (after them)  math warps                 producers    the buffer may be overwritten
//   math (1)               math warps                 math warps   replaces the CTA barrier
//   The table applies with producer_warps; without them every warp copies and computes.
#pragma once

#include "config/sm80_forward.h"
#include "device/core/block_mask.cuh"
#include "device/core/block_range.cuh"
#include "device/core/params.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/sm80/epilogue.cuh"
#include "device/sm80/geometry.cuh"
#include "device/sm80/modifiers.cuh"
#include "device/sm80/products.cuh"
#include "device/sm80/softmax.cuh"

namespace octavo::sm80 {

template <class Config>
struct ForwardKernel {
  using G = Geometry<Config>;
  using RowTile = typename G::RowTile;
  using State = typename G::State;
  static constexpr Sm80ForwardConfig C = G::C;
  static constexpr int kGroups = C.v_barrier ? 2 : 1;  // cp.async groups of a step
  static constexpr bool kBlockMask = C.modifiers.block_mask != 0;

  static OCTAVO_DEVICE GlobalRows global_rows(const void* data, const Strides& s,
                                              const RowTile& tile, i32 head, i32 first,
                                              i32 head_dim) {
    constexpr int kBytes = element_bytes(C.element);
    const i64 offset = tile.batch * s.batch + head * s.head + first * s.row;
    return {static_cast<const u8*>(data) + offset * kBytes, s.row * kBytes, head_dim * kBytes};
  }

  static OCTAVO_DEVICE u32 copy_thread(const RowTile& tile) {
    return C.producer_warps > 0 ? tile.thread - G::kMathThreads : tile.thread;
  }

  static OCTAVO_DEVICE void load_q(const ForwardParams& p, const RowTile& tile) {
    RowLoader<C.block_m, G::kCopyThreads, C.load_bytes, row_bytes(C)> loader(
        global_rows(p.q, p.q_strides, tile, tile.head, tile.span.q_begin + tile.first_row,
                    p.head_dim),
        copy_thread(tile));
    loader.load(G::q_tile(), tile.span.seqlen_q - tile.first_row);
  }

  // The copies of K and V that remain to be started.
  struct Copies {
    RowLoader<step_keys(C), G::kCopyThreads, C.load_bytes, row_bytes(C), C.keep_kv> k;
    RowLoader<step_keys(C), G::kCopyThreads, C.load_bytes, v_row_bytes(C), C.keep_kv> v;
    i32 rows;  // valid rows from the next step on
    i32 end;   // the value of `rows` after the last step
    // With a block mask: the loaders stay at the first key, `rows` is relative to it, and the next
    // step begins at `key`.
    i32 step, steps, key;
  };
  static OCTAVO_DEVICE Copies copies_of(const ForwardParams& p, const RowTile& tile,
                                        const BlockRange& range, i32 steps) {
    const i32 head = tile.head / p.heads_per_kv;
    const i32 begin = kBlockMask ? 0 : range.begin;
    const i32 token = tile.span.kv_begin + begin;
    Copies copies = {
        {global_rows(p.k, p.k_strides, tile, head, token, p.head_dim), copy_thread(tile)},
        {global_rows(p.v, p.v_strides, tile, head, token, G::head_dim_v(p)), copy_thread(tile)},
        tile.span.seqlen_kv - begin,
        tile.span.seqlen_kv - range.end,
        0,
        steps,
        0};
    if constexpr (kBlockMask) find_next_key(copies, p, tile);
    if constexpr (column_tiles(C) > 1)
      copies.v.skip_columns(tile.first_column * element_bytes(C.element),
                            tile.columns_left * element_bytes(C.element));
    return copies;
  }
  // Loads the entry of the lists a step before its copies start.
  static OCTAVO_DEVICE void find_next_key(Copies& copies, const ForwardParams& p,
                                          const RowTile& tile) {
    if (copies.step < copies.steps)
      copies.key = G::first_key(G::block_of_step(p, tile, copies.step), copies.step);
  }
  static OCTAVO_DEVICE void load_listed_step(Copies& copies, const ForwardParams& p,
                                             const RowTile& tile, int stage) {
    const bool any = copies.step < copies.steps;
    auto k = copies.k;
    auto v = copies.v;
    k.skip(static_cast<u32>(copies.key));
    v.skip(static_cast<u32>(copies.key));
    if (any) k.load(G::k_tile(stage), copies.rows - copies.key);
    if constexpr (C.v_barrier) ptx::cp_async_commit();
    if (any) v.load(G::v_tile(stage), copies.rows - copies.key);
    ptx::cp_async_commit();
    ++copies.step;
    find_next_key(copies, p, tile);
  }
  // Starts the copies of a step. Past the last step it only commits, so that the count of groups
  // stays the same.
  static OCTAVO_DEVICE void load_step(Copies& copies, const ForwardParams& p, const RowTile& tile,
                                      int stage) {
    if constexpr (kBlockMask) return load_listed_step(copies, p, tile, stage);
    const bool any = copies.rows > copies.end;
    if (any) copies.k.load(G::k_tile(stage), copies.rows);
    if constexpr (C.v_barrier) ptx::cp_async_commit();
    if (any) copies.v.load(G::v_tile(stage), copies.rows);
    ptx::cp_async_commit();
    copies.rows -= step_keys(C);
  }

  // Columns that pad the head dimension arrive as zero bytes, which sim8 reads as -128. Writing the
  // byte of value 0 to Q's padding makes their products 0.
  static OCTAVO_DEVICE void clear_q_padding(const ForwardParams& p, const RowTile& tile) {
    const u32 columns = static_cast<u32>(C.head_dim - p.head_dim);
    OCTAVO_ROLLED
    for (u32 i = tile.thread; i < C.block_m * columns; i += G::kMathThreads)
      ptx::store_shared_b8(
          G::q_tile().byte_address(i / columns, static_cast<u32>(p.head_dim) + i % columns), 128);
  }

  static OCTAVO_DEVICE void init(State& state, const ForwardParams& p, const RowTile& tile) {
    state.clear();
    OCTAVO_UNROLL
    for (int m = 0; m < G::kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        state.scale[m][r] = p.scale_log2;
        if constexpr (G::kRowScales) state.scale[m][r] *= row_scale(p, tile, m, r);
      }
    }
  }

  // The scale of a row of Q, times the scale of K if that is one per head.
  static OCTAVO_DEVICE float row_scale(const ForwardParams& p, const RowTile& tile, int m, int r) {
    const ScaleParams& q = p.q_scales;
    const i32 row =
        min_of(tile.first_row + static_cast<i32>(tile.row(m, r)), tile.span.seqlen_q - 1);
    const i32 index = ((q.by_token ? tile.span.q_begin : 0) + row) / q.block_rows;
    float scale = ptx::load_global_f32(q.data + tile.sequence * q.batch + tile.head * q.head +
                                       static_cast<i64>(index) * q.stride);
    if constexpr (!C.k_row_scales)
      scale *= ptx::load_global_f32(p.k_scales.data + tile.sequence * p.k_scales.batch +
                                    tile.head / p.heads_per_kv * p.k_scales.head);
    return scale;
  }

  static OCTAVO_DEVICE void wait_for_v() {
    if constexpr (C.v_barrier) {
      ptx::cp_async_wait<kGroups*(C.stages - 1)>();
      ptx::cta_sync();
    }
  }

  // One block of keys: scores, softmax, and o += p v. `bits`: the index of its table of bits in the
  // block mask, or -1.
  static OCTAVO_DEVICE void block(State& state, const typename G::QFragments& q,
                                  const BlockRange& range, const ForwardParams& p,
                                  const RowTile& tile, i32 key, i32 bits, int stage) {
    typename G::Scores scores;
    Products<G>::qk(scores, q, tile, stage);
    if (p.negate) Softmax<G>::negate(scores);
    if constexpr (C.k_row_scales) Softmax<G>::scale_keys(scores, p, tile, key);
    if constexpr (changes_scores(C.modifiers) || C.modifiers.mask)
      Modifiers<G>::apply(scores, state, p, tile, key);
    if constexpr (kBlockMask)
      if (bits >= 0) Modifiers<G>::hide_unset(scores, G::block_mask(p), tile, key, bits);
    if (range.needs_mask(key, C.block_n)) Softmax<G>::apply_mask(scores, p, tile, key);
    if constexpr (G::Operands::kPromoteBlocks) {
      typename Softmax<G>::Promotion promotion;
      Softmax<G>::softmax_promoted(scores, state, promotion);
      wait_for_v();
      Products<G>::pv_promoted(state, scores, promotion, tile, stage);
    } else {
      Softmax<G>::update_ref_max(scores, state);
      wait_for_v();
      Products<G>::pv(state, scores, tile, stage);
    }
  }

  // Producer warps (producer_warps): they fill a step's buffer after the math warps have released
  // it, and arrive at `full` when the copies of all but the newest stages - 1 steps have arrived.
  static OCTAVO_DEVICE int full(int stage) { return 2 + stage; }
  static OCTAVO_DEVICE int empty(int stage) { return 2 + C.stages + stage; }
  static OCTAVO_DEVICE int next(int stage) { return stage + 1 == C.stages ? 0 : stage + 1; }

  static OCTAVO_DEVICE void produce(const ForwardParams& p, const RowTile& tile,
                                    const BlockRange& range, int steps) {
    if (steps == 0) return;
    load_q(p, tile);
    Copies copies = copies_of(p, tile, range, steps);
    int stage = 0;
    for (int j = 0; j < steps + C.stages - 1; ++j) {
      if (j >= C.stages && j < steps) ptx::named_barrier_sync(empty(stage), G::kThreads);
      load_step(copies, p, tile, stage);
      stage = next(stage);
      if (j < C.stages - 1) continue;
      ptx::cp_async_wait<C.stages - 1>();
      ptx::named_barrier_arrive(full(stage), G::kThreads);
    }
  }

  // Waits for K and V of step j. If every warp copies, it also starts the copies of a later step.
  static OCTAVO_DEVICE void begin_step(Copies& copies, const ForwardParams& p, const RowTile& tile,
                                       int stage) {
    if constexpr (C.stages == 1) {
      G::math_sync();  // every warp is done with the only buffer
      load_step(copies, p, tile, 0);
    }
    // Groups that may still be in flight: those of later stages, and V's own.
    ptx::cp_async_wait<kGroups * max_of(C.stages - 2, 0) + kGroups - 1>();
    G::math_sync();
    if constexpr (C.stages > 1) load_step(copies, p, tile, stage == 0 ? C.stages - 1 : stage - 1);
  }

  static OCTAVO_DEVICE void prepare_q(typename G::QFragments& q, const ForwardParams& p,
                                      const RowTile& tile) {
    if (C.element == Element::sim8 && p.head_dim < C.head_dim) {
      clear_q_padding(p, tile);
      G::math_sync();
    }
    if constexpr (C.q_in_registers) Products<G>::load_q(q, tile);
  }

  static OCTAVO_DEVICE void math(const ForwardParams& p, const RowTile& tile,
                                 const BlockRange& range, int steps) {
    Copies copies = copies_of(p, tile, range, steps);
    if constexpr (C.producer_warps == 0) {
      if (steps > 0) load_q(p, tile);
      OCTAVO_UNROLL
      for (int stage = 0; stage < C.stages - 1; ++stage) load_step(copies, p, tile, stage);
    }
    State state;
    init(state, p, tile);
    typename G::QFragments q;
    int stage = 0;
    OCTAVO_UNROLL_BY(C.unroll)
    for (int j = 0; j < steps; ++j) {
      if constexpr (C.producer_warps > 0)
        ptx::named_barrier_sync(full(stage), G::kThreads);
      else
        begin_step(copies, p, tile, stage);
      if (j == 0) prepare_q(q, p, tile);
      i32 first = range.begin + j * step_keys(C), bits = -1;
      if constexpr (kBlockMask) {
        const ListedBlock listed = G::block_of_step(p, tile, j);
        first = G::first_key(listed, j);
        bits = listed.bits;
      }
      const i32 key = first + static_cast<i32>(tile.warp_n) * C.block_n;
      block(state, q, range, p, tile, key, bits, stage);
      if (C.producer_warps > 0 && j + C.stages < steps)
        ptx::named_barrier_arrive(empty(stage), G::kThreads);
      stage = next(stage);
    }
    ptx::cp_async_wait<0>();
    if constexpr (C.warps_n > 1) Epilogue<G>::combine(state, tile);
    if (tile.warp_n == 0) Epilogue<G>::finish(state, p, tile);
    Epilogue<G>::store_o(state, p, tile);
  }

  static OCTAVO_DEVICE void run_tile(const ForwardParams& p, RowTile& tile, i32 index) {
    if constexpr (column_tiles(C) > 1) {
      tile.first_column = index % column_tiles(C) * v_columns(C);
      tile.columns_left = max_of(G::head_dim_v(p) - tile.first_column, 0);
      index /= column_tiles(C);
    }
    // The last rows of a causal mask see the most keys, so they start first.
    tile.first_row = (p.row_tiles - 1 - index % p.row_tiles) * C.block_m;
    tile.head = index / p.row_tiles % p.heads_q;
    tile.sequence = index / p.row_tiles / p.heads_q;
    tile.batch = p.cu_seqlens_q == nullptr ? tile.sequence : 0;
    // The compiler spills with the other form of the search on each of these chips.
    constexpr bool kByLanes = C.arch >= 90;
    if constexpr (C.modifiers.padded) {
      tile.span =
          padded_span<kByLanes, /*kOverlaps=*/false>(p, G::modifiers(p).padding, tile.sequence);
      Epilogue<G>::clear_padding(p, tile);
    } else {
      tile.span = sequence_span<kByLanes, /*kOverlaps=*/false>(p, tile.sequence);
    }
    if (tile.first_row >= tile.span.seqlen_q) return;
    const BlockRange range = block_range(p, tile.span, tile.first_row, C.block_m, step_keys(C));
    int steps = div_up(max_of(range.end - range.begin, 0), step_keys(C));
    if constexpr (kBlockMask) {
      tile.blocks = block_row</*kOverlaps=*/false>(G::block_mask(p), tile.batch, tile.head,
                                                   tile.first_row / C.modifiers.block_mask);
      if (steps > 0) steps = tile.blocks.count() * G::kStepsOfBlock;
    }
    if (C.producer_warps > 0 && tile.thread >= G::kMathThreads)
      produce(p, tile, range, steps);
    else
      math(p, tile, range, steps);
  }

  static OCTAVO_DEVICE void entry(const ForwardParams& p) {
    RowTile tile;
    const u32 warp = ptx::warp_index();
    tile.warp_m = warp % C.warps_m;
    tile.warp_n = warp / C.warps_m;
    tile.lane = ptx::lane_index();
    tile.thread = ptx::thread_index();
    if constexpr (C.persistent) {
      for (i32 index = ptx::block_index_x(); index < p.tiles; index += ptx::grid_size_x()) {
        run_tile(p, tile, index);
        ptx::cta_sync();  // the previous tile's shared memory is no longer read
      }
    } else {
      run_tile(p, tile, ptx::block_index_x());
    }
  }
};

template <class Config>
OCTAVO_KERNEL(threads(Config::value), 1)
sm80_forward(const OCTAVO_GRID_CONSTANT ParamsOf<Config> p) {
  ForwardKernel<Config>::entry(p);
}

}  // namespace octavo::sm80
