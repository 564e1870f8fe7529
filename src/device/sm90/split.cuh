// The forward kernel for grids too small to fill the chip: warpgroups, and CTAs of a cluster,
// divide the keys of the same query rows, and put their results together in the same launch.
//
// Not for packed batches. Nobody only loads: one thread starts everything that the buffers hold
// before the CTA's first barrier, and a part fills its own again where its blocks are more.
//
//   a part       has o, maximum and sum over its own keys, for all columns,
//   hands        to each other part the columns that it puts together, and
//   gathers      its own columns from all of them: o / sum is written from registers.
//
// That happens twice: among the warpgroups of a CTA, by plain stores, then among the CTAs of a
// cluster, by st.async.
//
// Where heads are packed, a tile's rows are the queries of several heads that share keys: those of
// one head padded to a power of two, then the next one's. The tensor map of Q has boxes of as many
// heads; rows of heads that do not share the keys are computed and not stored.
//
// clang-format off
//   barrier         who arrives                 who waits             becomes true
//   q_full          thread 0, and Q's bytes     all                   Q is there
//   k_full, v_full  the loader, and the bytes   the part's threads    a block is there
//                   (k_full: its warps too, with scales of keys)
//   pieces_full[g]  thread 0, and the pieces    warpgroup g           the other parts' pieces are there
// clang-format on
#pragma once

#include "device/ptx/cluster.cuh"
#include "device/ptx/fence.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/sm90/epilogue.cuh"
#include "device/sm90/exchange.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/mainloop.cuh"
#include "device/sm90/schedule.cuh"
#include "device/sm90/split_output.cuh"

namespace octavo::sm90 {

template <class Config>
struct SplitKernel {
  using G = Geometry<Config>;
  using Lane = typename G::Lane;
  using Place = typename G::Place;
  using State = typename G::State;
  using KvRing = typename G::KvRing;
  static constexpr Sm90Forward C = G::C;
  static constexpr int kKeyGroups = key_groups(C);
  static constexpr int kParts = key_parts(C);
  static_assert(!C.split_keys || piece_columns(C) % 8 == 0,
                "pieces of O are whole groups of eight columns");
  static_assert(!C.pack_heads || C.row_groups != 3,
                "a tile of packed heads has whole heads, or a part of one");

  // A part's blocks of keys.
  struct Share {
    i32 key = 0;
    i32 blocks = 0;
  };
  static OCTAVO_DEVICE Share share_of(const Tile& t, u32 part) {
    const i32 first = t.blocks * static_cast<i32>(part) / kParts;
    const i32 last = t.blocks * static_cast<i32>(part + 1) / kParts;
    return {t.begin + first * C.block_n, last - first};
  }

  // Whether any part of a CTA has some: nobody would wait for what another loads.
  static OCTAVO_DEVICE bool has_blocks(const Tile& t, u32 rank) {
    const Share last = share_of(t, rank * kKeyGroups + kKeyGroups - 1);
    return share_of(t, rank * kKeyGroups).key < last.key + last.blocks * C.block_n;
  }

  // --- load -------------------------------------------------------------------------------------

  static OCTAVO_DEVICE void load_k(const Sm90ForwardParams& p, const Tile& t, i32 key, u32 stage) {
    ptx::mbarrier_arrive_expect_tx(G::k_full(stage), G::S.k_stage);
    G::load_rows(p.k, G::k_tile(stage), G::k_full(stage), C.block_n, key,
                 p.by_heads_per_kv.quotient(t.head), t.batch);
  }
  static OCTAVO_DEVICE void load_v(const Sm90ForwardParams& p, const Tile& t, i32 key, u32 stage) {
    ptx::mbarrier_arrive_expect_tx(G::v_full(stage), G::S.v_bytes);
    G::load_v(p, G::v_tile(stage), G::v_full(stage), t.at, t.sequence, key,
              p.by_heads_per_kv.quotient(t.head), t.batch);
  }
  // Everything the CTA's buffers hold at first, by one thread, in the order it is needed.
  static OCTAVO_DEVICE void load_first(const Sm90ForwardParams& p, const Tile& t, u32 rank) {
    ptx::mbarrier_arrive_expect_tx(G::q_full(0), C.row_groups * G::S.q_tile);
    OCTAVO_UNROLL
    for (int group = 0; group < C.row_groups; ++group) {
      const i32 row = t.first_row + group * kRows;
      G::load_rows(p.q, G::q_tile(group), G::q_full(0), kRows, G::query_of(p, row),
                   t.head + G::head_of(p, row), t.batch);
    }
    OCTAVO_UNROLL
    for (int stage = 0; stage < C.stages; ++stage) {
      OCTAVO_UNROLL
      for (u32 group = 0; group < kKeyGroups; ++group) {
        const Share share = share_of(t, rank * kKeyGroups + group);
        if (stage < share.blocks)
          load_k(p, t, share.key + stage * C.block_n, group * C.stages + stage);
      }
      OCTAVO_UNROLL
      for (u32 group = 0; group < kKeyGroups; ++group) {
        const Share share = share_of(t, rank * kKeyGroups + group);
        if (stage < share.blocks)
          load_v(p, t, share.key + stage * C.block_n, group * C.stages + stage);
      }
    }
  }

  // The scales of a block's keys, by all threads of the part.
  static OCTAVO_DEVICE void load_scales(const Sm90ForwardParams& p, const Tile& t, i32 key,
                                        u32 stage, const Lane& w) {
    if constexpr (scaled_rows(C) > 0) {
      const u32 thread = (w.group % C.row_groups * 4 + w.warp) * 32 + w.lane;
      G::template load_key_scales<C.row_groups * kWarpgroup>(
          p, t.at, t.sequence, key, p.by_heads_per_kv.quotient(t.head), stage, thread);
      ptx::warp_sync();
      if (w.lane == 0) ptx::mbarrier_arrive(G::k_full(stage));
    }
  }

  // Buffers that this part fills itself.
  struct Feed {
    const Sm90ForwardParams& p;
    const Tile& t;
    KvRing k, v;
    i32 k_key, v_key, end;  // the next blocks to load, and where they end

    // Whether this thread loads into a buffer that nobody of the part reads any more.
    OCTAVO_DEVICE static bool may_load(const Lane& w) {
      ptx::named_barrier_sync(static_cast<int>(1 + G::key_group(w)), C.row_groups * kWarpgroup);
      return w.group % C.row_groups == 0 && w.warp == 0 && w.lane == 0;
    }
    OCTAVO_DEVICE void release_k(const Lane& w) {
      if (k_key < end) {
        if (may_load(w)) load_k(p, t, k_key, k.stage());
        load_scales(p, t, k_key, k.stage(), w);
        k_key += C.block_n;
      }
      k.advance();
    }
    OCTAVO_DEVICE void release_v(const Lane& w) {
      if (v_key < end) {
        if (may_load(w)) load_v(p, t, v_key, v.stage());
        v_key += C.block_n;
      }
      v.advance();
    }
  };

  // --- combine ----------------------------------------------------------------------------------

  // Parts are weighed by sums: where those are not of P's bytes, O becomes one of them here.
  static OCTAVO_DEVICE Piece<G::kColumns> all_of(const State& state) {
    Piece<G::kColumns> all;
    OCTAVO_UNROLL
    for (int i = 0; i < G::kColumns; ++i) all.o[i] = state.o[i];
    OCTAVO_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      all.origin[half] = state.rows.origin[half];
      all.sum[half] = Epilogue<G>::sum_of(state, state.rows, half);
      if constexpr (Epilogue<G>::kSumsApart) {
        Epilogue<G>::template divide<true, G::kColumns>(
            all.o, half, Epilogue<G>::division_of(state.rows, half, all.sum[half]));
        OCTAVO_UNROLL
        for (u32 i = 0; i < G::kColumns / 2; ++i)
          all.o[i / 2 * 4 + half * 2 + i % 2] *= all.sum[half];
      }
    }
    return all;
  }

  // First in the CTA: what then goes over to the others is so much less.
  using InCta = Exchange<G, false, kKeyGroups, G::kColumns>;
  using InCluster = Exchange<G, true, C.cluster, InCta::kMine>;
  static constexpr int kPiece = InCluster::kMine;

  using Output = SplitOutput<G, InCta::kMine, kPiece>;

  // --- math -------------------------------------------------------------------------------------

  static OCTAVO_DEVICE void math(const Sm90ForwardParams& p, const Tile& t, u32 rank) {
    Place w;
    w.group = ptx::warp_index() / 4;
    w.warp = ptx::warp_index() % 4;
    w.lane = ptx::lane_index();
    const u32 row_group = w.group % C.row_groups;
    const u32 part = rank * kKeyGroups + G::key_group(w);
    w.at = t.at;
    w.sequence = t.sequence;
    w.batch = t.batch;
    w.head = t.head;
    w.first_row = t.first_row + static_cast<i32>(row_group) * kRows;
    // Long before they are needed, and before thread 0 has loaded the first keys: parameters that
    // nobody has read yet take their time, and so do scales.
    G::wait_for_scales();
    const auto scales = Mainloop<G>::load_scales(p, w);
    // At the end nothing would hide that they are on their way, but for other CTAs where an SM is
    // to hold several.
    constexpr bool kScalesFirst = C.ctas == 1;
    float v_scales[kPiece / 2];
    if constexpr (G::kFolds && kScalesFirst)
      Epilogue<G>::load_v_scales(v_scales, p, w, Output::piece_begin(w, rank));
    ptx::cta_sync();
    typename Output::Destination to;
    if constexpr (Output::kDestinationFirst) to = Output::destination(p, w, rank);
    State state;
    const Share share = share_of(t, part);
    if (share.blocks > 0) {
      Mainloop<G>::begin_rows(state.rows, p, scales);
      Mainloop<G>::begin_o(state);
      const BlockRange range = block_range(p, w.at, G::query_of(p, w.first_row), kRows, C.block_n);
      const KvRing ring{G::key_group(w) * C.stages};
      OCTAVO_UNROLL
      for (int stage = 0; stage < C.stages; ++stage)
        if (stage < share.blocks)
          load_scales(p, t, share.key + stage * C.block_n, ring.first + stage, w);
      const i32 next = share.key + C.stages * C.block_n;
      Feed feed{p, t, ring, ring, next, next, share.key + share.blocks * C.block_n};
      ptx::mbarrier_wait(G::q_full(0), 0);
      // Not earlier: the next grid's CTAs would crowd on the SMs where this one's have not come.
      if constexpr (C.early_start) ptx::launch_dependent_grids();
      if constexpr (C.overlap)
        Mainloop<G>::run(state, p, w, range, share.key, share.blocks, row_group, feed);
      else
        Mainloop<G>::run_in_turn(state, p, w, range, share.key, share.blocks, row_group, feed);
    } else {
      Mainloop<G>::init(state);
    }
    const auto of_cta = InCta::run(all_of(state), G::key_group(w), w);
    Piece<kPiece> mine = InCluster::run(of_cta, rank, w);
    OCTAVO_UNROLL
    for (u32 half = 0; half < 2; ++half)
      Epilogue<G>::template divide<G::kIntegers && !Epilogue<G>::kSumsApart, kPiece>(
          mine.o, half, Epilogue<G>::division_by(mine.sum[half]));
    if constexpr (G::kFolds) {
      if constexpr (!kScalesFirst)
        Epilogue<G>::load_v_scales(v_scales, p, w, Output::piece_begin(w, rank));
      Epilogue<G>::scale_values(mine.o, v_scales);
    }
    if constexpr (!Output::kDestinationFirst) to = Output::destination(p, w, rank);
    Output::store(mine, to, p, w, part == 0);
  }

  // --- entry ------------------------------------------------------------------------------------

  static OCTAVO_DEVICE void init_load_barriers() {
    ptx::mbarrier_init(G::q_full(0), 1);
    OCTAVO_UNROLL
    for (u32 stage = 0; stage < kv_buffers(C); ++stage) {
      ptx::mbarrier_init(G::k_full(stage), scaled_rows(C) > 0 ? 1 + 4 * C.row_groups : 1);
      ptx::mbarrier_init(G::v_full(stage), 1);
    }
    ptx::fence_mbarrier_init();
  }
  static OCTAVO_DEVICE void init_piece_barriers() {
    OCTAVO_UNROLL
    for (u32 group = 0; group < C.warpgroups; ++group) {
      ptx::mbarrier_init(G::pieces_full(group), 1);
      ptx::mbarrier_arrive_expect_tx(G::pieces_full(group),
                                     (C.cluster - 1) * handed_bytes(piece_columns(C)));
    }
    ptx::fence_mbarrier_init();
  }

  // Every tile has rows, and its length is known: batches are not packed here.
  static OCTAVO_DEVICE Tile tile_of(const Sm90ForwardParams& p, i32 index) {
    const i32 head = p.by_row_tiles.quotient(index);
    Tile t;
    t.first_row = ((head + 1) * p.row_tiles - 1 - index) * block_m(C);  // the longest first
    t.sequence = t.batch = p.by_heads_q.quotient(head);
    t.head = head - t.sequence * p.heads_q;
    if constexpr (C.pack_heads) t.head *= p.heads_per_kv;  // the first of them
    t.at = {0, p.len_q, 0, p.len_kv};
    const BlockRange range =
        block_range(p, t.at, G::query_of(p, t.first_row), block_m(C), C.block_n);
    t.begin = range.begin;
    t.blocks = div_up(max_of(range.end - range.begin, 0), C.block_n);
    return t;
  }

  // Thread 0 has the longest way before the first keys arrive: it starts with what needs no
  // parameter, whose first read is slow, and the other warps do the rest.
  static OCTAVO_DEVICE void entry(const Sm90ForwardParams& p) {
    const u32 thread = ptx::thread_index();
    if (thread == 0) init_load_barriers();
    if (C.cluster > 1 && thread == 32) init_piece_barriers();
    const u32 rank = C.cluster > 1 ? ptx::cluster_cta_rank() : 0;
    const Tile t = tile_of(p, ptx::block_index_x() / C.cluster);
    // Who stores waits for this thread before.
    if (C.early_start && thread == 0) ptx::wait_for_earlier_grids();
    if (thread == 0 && has_blocks(t, rank)) load_first(p, t, rank);
    if constexpr (C.cluster > 1) ptx::cluster_arrive_relaxed();
    if (G::kOnes && thread >= 32) {
      G::template fill_ones<threads(C) - 32>(thread - 32);
      ptx::fence_proxy_async();
    }
    math(p, t, rank);
  }
};

}  // namespace octavo::sm90
