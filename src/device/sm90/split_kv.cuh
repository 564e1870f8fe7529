// SPDX-License-Identifier: Apache-2.0
// The split-KV forward kernel, for grids too small to fill the chip: warpgroups, and the CTAs of a
// cluster, divide the keys of the same query rows, and combine their results in the same launch.
// Not for varlen batches, but for padded ones.
//
// There is no producer warp. Before the first CTA barrier thread 0 issues the loads that fill all
// stages; later each split refills its own.
//
//   a split      has O, ref_max and row sum over its own keys, for all columns of O,
//   sends        each other split its part of the columns that the other reduces, and
//   reduces      its own columns over all splits: it stores O / sum from registers.
//
// This reduce-scatter happens twice: among the warpgroups of a CTA, by plain stores, then among the
// CTAs of a cluster, by st.async (split_exchange.cuh).
//
// With pack_gqa a tile's rows are the queries of several heads that share keys: those of one head
// padded to a power of two, then the next head's. The tensor map of Q has boxes of as many heads;
// rows of heads that do not share the keys are computed and not stored.
//
// clang-format off
//   barrier           arrives                      waits                  becomes true
//   q_full            thread 0, and Q's bytes      all                    Q is loaded
//   k_full, v_full    the loading thread, and      the split's threads    a block is loaded
//                     the bytes (k_full with scales: the split's warps too)
//   partials_full[g]  thread 0, and the bytes      warpgroup g            partial results arrived
// clang-format on
#pragma once

#include "device/core/block_range.cuh"
#include "device/ptx/cluster.cuh"
#include "device/ptx/fence.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/loads.cuh"
#include "device/sm90/mainloop.cuh"
#include "device/sm90/modifiers.cuh"
#include "device/sm90/numerics/select.cuh"
#include "device/sm90/scheduler.cuh"
#include "device/sm90/split_exchange.cuh"
#include "device/sm90/split_output.cuh"

namespace octavo::sm90 {

// The blocks of keys of one split.
template <class G, class N>
struct KvShare {
  using ThreadCoord = typename G::ThreadCoord;
  using RowTile = typename G::RowTile;
  using KvState = typename G::KvState;
  static constexpr Sm90ForwardConfig C = G::C;
  static constexpr int kSplitThreads = C.row_groups * kWarpgroup;

  struct Range {
    i32 n = 0;
    i32 blocks = 0;
  };
  static OCTAVO_DEVICE Range range_of(const WorkTile& t, u32 split) {
    const i32 first = t.n_blocks * static_cast<i32>(split) / kv_splits(C);
    const i32 last = t.n_blocks * static_cast<i32>(split + 1) / kv_splits(C);
    return {t.n_begin + first * C.block_n, last - first};
  }

  static OCTAVO_DEVICE void load_k(const Sm90ForwardParams& p, const WorkTile& t, i32 n,
                                   u32 stage) {
    ptx::mbarrier_arrive_expect_tx(G::k_full(stage), G::S.k_stage);
    load_rows(p.k, G::k_tile(stage), G::k_full(stage), C.block_n, t.span.kv_begin + n,
              p.by_heads_per_kv.quotient(t.head), t.batch, qk_panels(C));
  }
  static OCTAVO_DEVICE void load_v(const Sm90ForwardParams& p, const WorkTile& t, i32 n,
                                   u32 stage) {
    ptx::mbarrier_arrive_expect_tx(G::v_full(stage), G::S.v_bytes);
    N::load_v(p, G::v_tile(stage), G::v_full(stage), t.span, t.sequence, n,
              p.by_heads_per_kv.quotient(t.head), t.batch);
  }
  // The scales of a block's keys, by all threads of the split.
  static OCTAVO_DEVICE void load_k_scales(const Sm90ForwardParams& p, const WorkTile& t, i32 n,
                                          u32 stage, const ThreadCoord& c) {
    if constexpr (scaled_keys(C) > 0) {
      const u32 thread = (c.group % C.row_groups * 4 + c.warp) * 32 + c.lane;
      N::template load_k_scales<kSplitThreads>(p, t.span, t.sequence, n,
                                               p.by_heads_per_kv.quotient(t.head), stage, thread);
      ptx::warp_sync();
      if (c.lane == 0) ptx::mbarrier_arrive(G::k_full(stage));
    }
  }

  const Sm90ForwardParams& p;
  const WorkTile& t;
  const RowTile& row_tile;
  BlockRange range;
  KvState k, v;
  i32 n, blocks_left;       // first key of the current block; how many blocks follow
  i32 next_k, next_v, end;  // first keys of the next K and V to load; where the split ends

  OCTAVO_DEVICE KvShare(const Sm90ForwardParams& params, const WorkTile& tile, const RowTile& of,
                        const Range& share)
      : p(params), t(tile), row_tile(of), n(share.n), blocks_left(share.blocks - 1) {
    range = block_range(p, row_tile.span, G::query_of(p, row_tile.first_row), kRows, C.block_n);
    k = v = KvState{G::kv_group(row_tile) * C.stages};
    OCTAVO_UNROLL
    for (int stage = 0; stage < C.stages; ++stage)
      if (stage < share.blocks)
        load_k_scales(p, t, share.n + stage * C.block_n, k.first + stage, row_tile);
    next_k = next_v = share.n + C.stages * C.block_n;
    end = share.n + share.blocks * C.block_n;
  }

  OCTAVO_DEVICE bool advance() {
    n += C.block_n;
    return blocks_left-- > 0;
  }
  OCTAVO_DEVICE i32 key() const { return n; }
  OCTAVO_DEVICE const RowTile& rows() const { return row_tile; }
  OCTAVO_DEVICE bool hides_keys() const {
    return needs_mask(n, C.block_n, range.full_begin, range.full_end);
  }
  OCTAVO_DEVICE void modify(typename N::Scores& scores) const {
    using Modifier = ScoreModifier<G>;
    if constexpr (Modifier::kChangesBlocks)
      Modifier::apply(scores, p, n, Modifier::alibi_of(p, row_tile), [&] { return row_tile; });
  }
  // Waits until all threads of the split have finished with the stage; true in the one thread that
  // refills it.
  OCTAVO_DEVICE bool sync_split_and_elect() const {
    ptx::named_barrier_sync(static_cast<int>(1 + G::kv_group(row_tile)), kSplitThreads);
    return row_tile.group % C.row_groups == 0 && row_tile.warp == 0 && row_tile.lane == 0;
  }
  // In a padded batch rows of V after the last key may hold anything: all threads of the split zero
  // them.
  OCTAVO_DEVICE void clear_v_tail(const KvState& loaded) const {
    if constexpr (C.modifiers.padded) {
      if (n + C.block_n <= row_tile.span.seqlen_kv) return;
      const u32 thread = (row_tile.group % C.row_groups * 4 + row_tile.warp) * 32 + row_tile.lane;
      N::template clear_v_tail<kSplitThreads>(G::v_tile(loaded.stage()),
                                              row_tile.span.seqlen_kv - n, thread);
      ptx::fence_proxy_async();
      ptx::named_barrier_sync(static_cast<int>(1 + G::kv_group(row_tile)), kSplitThreads);
    }
  }
  OCTAVO_DEVICE void release_k() {
    if (next_k < end) {
      if (sync_split_and_elect()) load_k(p, t, next_k, k.stage());
      load_k_scales(p, t, next_k, k.stage(), row_tile);
      next_k += C.block_n;
    }
    k.advance();
  }
  OCTAVO_DEVICE void release_v() {
    if (next_v < end) {
      if (sync_split_and_elect()) load_v(p, t, next_v, v.stage());
      next_v += C.block_n;
    }
    v.advance();
  }

  // A CTA has one tile.
  OCTAVO_DEVICE static constexpr bool is_new_tile() { return false; }
  OCTAVO_DEVICE void begin_rows(typename N::State&) const {}
  OCTAVO_DEVICE void store_previous_tile(typename N::State&, const typename N::Rows&) const {}
  OCTAVO_DEVICE void store_previous_and_begin_rows(typename N::State&) const {}
};

template <class Config>
struct SplitKvKernel {
  using G = Geometry<Config>;
  using N = NumericsOf<G>;
  using Share = KvShare<G, N>;
  using State = typename N::State;
  static constexpr Sm90ForwardConfig C = G::C;
  static constexpr int kKvGroups = kv_groups(C);
  static_assert(!is_split_kv(C) || split_columns(C) % 8 == 0,
                "a split reduces whole groups of eight columns");
  static_assert(!C.pack_gqa || C.row_groups != 3,
                "a tile with pack_gqa has whole heads, or a part of one");

  // Combine within the CTA first: less data then goes to the other CTAs.
  using InCta = SplitExchange<G, false, kKvGroups, G::kORegisters>;
  using InCluster = SplitExchange<G, true, C.cluster, InCta::kMine>;
  static constexpr int kMine = InCluster::kMine;
  using Output = SplitOutput<G, N, InCta::kMine, kMine>;

  // Whether any split of the CTA has a block; otherwise no thread would wait for Q.
  static OCTAVO_DEVICE bool has_blocks(const WorkTile& t, u32 rank) {
    const typename Share::Range last = Share::range_of(t, rank * kKvGroups + kKvGroups - 1);
    return Share::range_of(t, rank * kKvGroups).n < last.n + last.blocks * C.block_n;
  }
  // Loads Q and fills all stages, in the order of use, by one thread.
  static OCTAVO_DEVICE void load_first(const Sm90ForwardParams& p, const WorkTile& t, u32 rank) {
    ptx::mbarrier_arrive_expect_tx(G::q_full(0), C.row_groups * G::S.q_tile);
    OCTAVO_UNROLL
    for (int group = 0; group < C.row_groups; ++group) {
      const i32 row = t.first_row + group * kRows;
      load_rows(p.q, G::q_tile(group), G::q_full(0), kRows, t.span.q_begin + G::query_of(p, row),
                t.head + G::head_of(p, row), t.batch, qk_panels(C));
    }
    const auto for_each_group = [&](int stage, auto&& load) {
      OCTAVO_UNROLL
      for (u32 group = 0; group < kKvGroups; ++group) {
        const typename Share::Range share = Share::range_of(t, rank * kKvGroups + group);
        if (stage < share.blocks) load(p, t, share.n + stage * C.block_n, group * C.stages + stage);
      }
    };
    OCTAVO_UNROLL
    for (int stage = 0; stage < C.stages; ++stage) {
      for_each_group(stage, Share::load_k);
      for_each_group(stage, Share::load_v);
    }
  }

  static OCTAVO_DEVICE typename G::RowTile row_tile(const WorkTile& t) {
    typename G::RowTile rows;
    rows.group = ptx::warp_index() / 4;
    rows.warp = ptx::warp_index() % 4;
    rows.lane = ptx::lane_index();
    rows.span = t.span;
    rows.sequence = t.sequence;
    rows.batch = t.batch;
    rows.head = t.head;
    rows.first_row = t.first_row + static_cast<i32>(rows.group % C.row_groups) * kRows;
    return rows;
  }

  static OCTAVO_DEVICE void consume(const Sm90ForwardParams& p, const WorkTile& t, u32 rank) {
    const typename G::RowTile rows = row_tile(t);
    const u32 row_group = rows.group % C.row_groups;
    const u32 split = rank * kKvGroups + G::kv_group(rows);
    // Issue these loads early: first reads of parameters and of scales are slow, and nothing waits
    // for them here.
    N::wait_for_scales();
    const auto row_scales = N::load_row_scales(p, [&] { return rows; });
    typename N::template ColumnScales<kMine> v_scales;
    v_scales.load_first(p, rows, Output::first_column(rows, rank));
    ptx::cta_sync();
    typename Output::Destination to;
    if (Output::kDestinationFirst) to = Output::destination(p, rows, rank);
    State state;
    N::init_rows(state.rows, p.scale_log2, row_scales);
    const typename Share::Range share = Share::range_of(t, split);
    if (share.blocks > 0) {
      N::begin_o(state);
      Share blocks(p, t, rows, share);
      ptx::mbarrier_wait(G::q_full(0), 0);
      // Not earlier: the next grid's CTAs would occupy SMs that this grid's CTAs still need.
      ptx::launch_dependent_grids();
      Mainloop<G, N>::run(state, p, q_descriptor<G>(row_group), rows.lane, blocks);
    } else {
      clear_o(state);
    }
    const auto of_cta =
        InCta::run(N::template to_partial<Partial<G::kORegisters>>(state), G::kv_group(rows), rows);
    Partial<kMine> mine = InCluster::run(of_cta, rank, rows);
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) Output::normalize(mine, p, rows, r);
    v_scales.load_last(p, rows, Output::first_column(rows, rank));
    v_scales.multiply(mine.o);
    if (!Output::kDestinationFirst) to = Output::destination(p, rows, rank);
    Output::store(mine, to, p, rows, split == 0);
  }

  static OCTAVO_DEVICE void init_load_barriers() {
    ptx::mbarrier_init(G::q_full(0), 1);
    OCTAVO_UNROLL
    for (u32 stage = 0; stage < kv_buffers(C); ++stage) {
      ptx::mbarrier_init(G::k_full(stage), scaled_keys(C) > 0 ? 1 + 4 * C.row_groups : 1);
      ptx::mbarrier_init(G::v_full(stage), 1);
    }
    ptx::fence_mbarrier_init();
  }
  static OCTAVO_DEVICE void init_partial_barriers() {
    OCTAVO_UNROLL
    for (u32 group = 0; group < C.warpgroups; ++group) {
      ptx::mbarrier_init(G::partials_full(group), 1);
      ptx::mbarrier_arrive_expect_tx(G::partials_full(group),
                                     (C.cluster - 1) * partial_bytes(split_columns(C)));
    }
    ptx::fence_mbarrier_init();
  }

  // Every tile has rows to store, and the host knows how many: this kernel does not serve varlen
  // batches.
  static OCTAVO_DEVICE WorkTile tile_of(const Sm90ForwardParams& p, i32 index) {
    const i32 head = p.by_row_tiles.quotient(index);
    WorkTile t;
    t.first_row = ((head + 1) * p.row_tiles - 1 - index) * block_m(C);  // the longest first
    t.sequence = t.batch = p.by_tile_heads.quotient(head);
    t.head = head - t.sequence * p.tile_heads;
    if (C.pack_gqa) t.head *= p.heads_per_kv;  // the first of them
    const i32 first_query = G::query_of(p, t.first_row);
    if constexpr (C.modifiers.padded) {
      t.span = G::span(p, t.sequence);
      t.n_begin = t.n_blocks = 0;
      if (first_query >= t.span.seqlen_q) return t;  // all rows are padding
    } else {
      t.span = {0, p.seqlen_q, 0, p.seqlen_kv};
    }
    const BlockRange range = block_range(p, t.span, first_query, block_m(C), C.block_n);
    t.n_begin = range.begin;
    t.n_blocks = div_up(max_of(range.end - range.begin, 0), C.block_n);
    return t;
  }

  // Thread 0 is on the critical path to the first keys, so it first does what needs no parameters;
  // other warps do the rest.
  static OCTAVO_DEVICE void run(const Sm90ForwardParams& p) {
    const u32 thread = ptx::thread_index();
    if (thread == 0) init_load_barriers();
    if (C.cluster > 1 && thread == 32) init_partial_barriers();
    const u32 rank = C.cluster > 1 ? ptx::cluster_cta_rank() : 0;
    // An earlier grid may write the lengths of a padded batch.
    if (C.modifiers.padded) ptx::wait_for_earlier_grids();
    const WorkTile t = tile_of(p, ptx::block_index_x() / C.cluster);
    // No thread stores before it has waited, directly or through barriers, for this one.
    if (thread == 0) {
      if (!C.modifiers.padded) ptx::wait_for_earlier_grids();
      if (has_blocks(t, rank)) load_first(p, t, rank);
    }
    if (C.cluster > 1) ptx::cluster_arrive_relaxed();
    if (N::kFillsConstants && thread >= 32) {
      N::template fill_constants<threads(C) - 32>(thread - 32);
      ptx::fence_proxy_async();
    }
    consume(p, t, rank);
  }
};

}  // namespace octavo::sm90
