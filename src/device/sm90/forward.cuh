// Forward attention on Hopper: o = softmax(scale * q k^T) v, with wgmma and TMA.
//
// A tile of work is 64 query rows for each of the warpgroups that compute, of one head. One more
// warpgroup, of which a single warp is awake, loads: Q once a tile, K and V block after block into
// a ring of buffers that all warpgroups read.
//
//   role    warps                 registers          does
//   math    4 x warpgroups        math_registers     s = q k^T, softmax, o += p v, store o
//   load    1 (of a warpgroup)    load_registers     TMA loads, as buffers become empty
//
//   shared memory   what                                       bytes
//   q               64 rows a warpgroup                        warpgroups * q_tile
//   o               the same, where own_o is on
//   k[stages]       block_n rows, in blocks of columns         k_stage each
//   v[stages]       the same; with ones, a block more; as      v_stage each
//                   codes head_dim rows, in chunks of keys
//   ones            16 rows of them, where V is one block wide; or the bias of scores, two operands
//   key_scales      block_n floats a stage with k_row_scales, one a group with k_block_scales
//   v_scales        head_dim floats a warpgroup, of codes
//
// clang-format off
//   barrier       who arrives                  who waits              becomes true
//   q_full[g]     the loader, and Q's bytes    warpgroup g            Q of the tile is there
//   q_empty[g]    4 warps of warpgroup g       the loader             Q may be replaced
//   k_full[s]     the loader, and K's bytes    all that compute       K of a block is there, and its
//                 (twice with scales)                                 keys' scales
//   k_empty[s]    4 warps a warpgroup          the loader             all scores are computed
//   v_full[s], v_empty[s]                                             the same for V
//   tail_full     the loader, and V's bytes    the loader             V's last rows can be cleared
// clang-format on
//
// A block's timeline is in mainloop.cuh. While one warpgroup is in its softmax, the others keep the
// tensor cores busy.
#pragma once

#include "config/sm90_forward.h"
#include "device/ptx/fence.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/tma.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/sm90/epilogue.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/loader.cuh"
#include "device/sm90/mainloop.cuh"
#include "device/sm90/mask.cuh"
#include "device/sm90/schedule.cuh"
#include "device/sm90/split.cuh"

namespace octavo::sm90 {

template <class Config>
struct ForwardKernel {
  using G = Geometry<Config>;
  using Place = typename G::Place;
  using Lane = typename G::Lane;
  using Rows = typename G::Rows;
  using State = typename G::State;
  using Scores = typename G::Scores;
  using Probabilities = typename G::Probabilities;
  using KvRing = typename G::KvRing;
  static constexpr Sm90Forward C = G::C;
  static constexpr u32 kWarps = C.warpgroups * 4;  // that compute

  // --- math -------------------------------------------------------------------------------------

  static OCTAVO_DEVICE void arrive(u32 bar, const Lane& w) {
    if (w.lane == 0) ptx::mbarrier_arrive(bar);
  }

  // Buffers that the loader fills, and is told to fill again.
  struct Feed {
    KvRing k, v;
    OCTAVO_DEVICE void release_k(const Lane& w) {
      arrive(G::k_empty(k.stage()), w);
      k.advance();
    }
    OCTAVO_DEVICE void release_v(const Lane& w) {
      arrive(G::v_empty(v.stage()), w);
      v.advance();
    }
    // What a lane has read of earlier tiles on the board, another one answers for.
    OCTAVO_DEVICE void release_q(const Lane& w) {
      ptx::warp_sync();
      arrive(G::q_empty(w.group), w);
    }
    // Blocks that other warpgroups need and this one does not. One lane speaks for its warp, so
    // the others must have come too: nothing else keeps them together here.
    OCTAVO_DEVICE void pass_k(const Lane& w) {
      ptx::spare("V of the block before, or the next tile, came: the loader found this one empty");
      ptx::mbarrier_wait(G::k_full(k.stage()), k.phase());
      ptx::warp_sync();
      release_k(w);
    }
    OCTAVO_DEVICE void pass_v(const Lane& w) {
      ptx::mbarrier_wait(G::v_full(v.stage()), v.phase());
      ptx::warp_sync();
      release_v(w);
    }
    OCTAVO_DEVICE void pass(i32 blocks, const Lane& w) {
      for (i32 i = 0; i < blocks; ++i) {
        pass_k(w);
        pass_v(w);
      }
    }
  };

  // A warpgroup's way through a tile.
  struct Course {
    i32 left;     // blocks of its own to come; below 0: there are no more tiles
    i32 key;      // of the next one
    i32 skipped;  // blocks of the tile before them, that only others need,
    i32 rest;     // and after them
    i32 full_begin, full_end;

    OCTAVO_DEVICE bool needs_mask() const {
      return ptx::mask_term(key < full_begin, false) ||
             ptx::mask_term(key + C.block_n > full_end, false);
    }
  };

  static OCTAVO_DEVICE Course course_of(const Sm90ForwardParams& p, const Lane& lane, u32 tile) {
    const Tile t = TileBoard<G>::read(tile);
    if (t.blocks == TileBoard<G>::kNoMore) return {-1, 0, 0, 0, 0, 0};
    const i32 first_row = t.first_row + static_cast<i32>(lane.group) * kRows;
    if (first_row >= t.at.len_q) return {0, 0, 0, t.blocks, 0, 0};
    const BlockRange range = block_range(p, t.at, first_row, kRows, C.block_n);
    if (range.begin >= range.end) return {0, 0, 0, t.blocks, 0, 0};
    const i32 first = (range.begin - t.begin) / C.block_n;
    const i32 last = div_up(range.end - t.begin, C.block_n);
    // In pairs all blocks count as masked where they are negated: that is asked once a tile so.
    const i32 full_end = G::kHalves && p.negate ? range.begin : range.full_end;
    return {last - first, range.begin, first, t.blocks - last, range.full_begin, full_end};
  }
  // Waits for the tile and its Q.
  static OCTAVO_DEVICE Course await_tile(const Sm90ForwardParams& p, const Lane& lane, u32 tile) {
    ptx::mbarrier_wait(G::q_full(lane.group), tile & 1);
    return course_of(p, lane, tile);
  }
  static OCTAVO_DEVICE Place place_of(const Lane& lane, u32 tile) {
    const Tile t = TileBoard<G>::read(tile);
    Place w;
    static_cast<Lane&>(w) = lane;
    w.at = t.at;
    w.sequence = t.sequence;
    w.batch = t.batch;
    w.head = t.head;
    w.first_row = t.first_row + static_cast<i32>(lane.group) * kRows;
    return w;
  }

  // What a few blocks need before the softmax. Whether this one did.
  static OCTAVO_DEVICE bool prepare(Scores& scores, const Sm90ForwardParams& p, const Lane& lane,
                                    const Course& c, u32 tile) {
    // One branch or two, a lane's number kept or found again: the other way three warpgroups of 128
    // keys in 16 bits, P V first, would spill 16 bytes, E5M2 at 128 columns 4, and INT8 at 64 4
    // or 8.
    if (G::kCodes && !c.needs_mask() && (G::kHalves || !p.negate)) return false;
    if (p.negate) Mask<G>::negate(scores);
    if (!G::kCodes && !c.needs_mask()) return false;
    Place w = place_of(lane, tile);
    if constexpr (G::kCodes && !G::kBiased) ptx::pin(w.lane);
    Mask<G>::apply_mask(scores, p, w, c.key);
    return true;
  }

  static OCTAVO_DEVICE void store(State& state, const Rows& rows, const Sm90ForwardParams& p,
                                  const Lane& lane, u32 tile) {
    Place w = place_of(lane, tile);
    ptx::pin(w.lane);  // addresses made from it are not kept over the loop
    Epilogue<G>::finish(state, rows, p, w);
    if constexpr (C.amax) Epilogue<G>::find_amax(state, p, w);
    Epilogue<G>::store_o(state, p, w);
  }

  // Scales of a tile's rows, and of V, are a while on their way: they are asked for before the tile
  // before it is stored, where there are registers for them.
  static constexpr bool kEarlyScales = G::kHalves || G::kBiased;
  using RowScales = typename Scales<G>::Loaded;
  using ValueScales = typename Epilogue<G>::ValueScales;
  static OCTAVO_DEVICE RowScales row_scales(const Sm90ForwardParams& p, const Lane& lane,
                                            u32 tile) {
    RowScales scales{};
    if constexpr (G::kCodes) {
      Place w = place_of(lane, tile);
      ptx::pin(w.lane);  // addresses made from it are not kept either
      scales = Mainloop<G>::load_scales(p, w);
    }
    return scales;
  }
  static OCTAVO_DEVICE ValueScales value_scales(const Sm90ForwardParams& p, const Lane& lane,
                                                u32 tile) {
    ValueScales scales{};
    if constexpr (G::kFolds) {
      Place w = place_of(lane, tile);
      ptx::pin(w.lane);
      scales = Epilogue<G>::load_value_scales(p, w);
    }
    return scales;
  }
  // Until the tile's end; when the one before it was stored.
  static OCTAVO_DEVICE void keep(const ValueScales& scales, Lane lane) {
    if constexpr (G::kFolds) {
      ptx::pin(lane.lane);
      Epilogue<G>::put_value_scales(scales, lane);
    }
  }

  // Of a tile whose keys were all seen while the next one's come.
  static OCTAVO_DEVICE void end_tile(State& state, const Rows& rows, const Sm90ForwardParams& p,
                                     const Lane& lane, u32 tile, Feed& feed) {
    const i32 rest = course_of(p, lane, tile).rest;
    for (i32 i = 0; i < rest; ++i) feed.pass_v(lane);
    store(state, rows, p, lane, tile);
    Mainloop<G>::begin_o(state);
  }

  // And the next one begins.
  static OCTAVO_DEVICE void next_tile(State& state, const Sm90ForwardParams& p, const Lane& lane,
                                      u32 tile, Feed& feed) {
    RowScales rows;
    ValueScales values;
    const auto load = [&] {
      rows = row_scales(p, lane, tile);
      values = value_scales(p, lane, tile);
    };
    if constexpr (kEarlyScales) load();
    end_tile(state, state.rows, p, lane, tile - 1, feed);
    if constexpr (!kEarlyScales) load();
    Mainloop<G>::begin_rows(state.rows, p, rows);
    keep(values, lane);
  }

  static OCTAVO_DEVICE void release_scores(const Lane& lane, Course& c, Feed& feed) {
    if constexpr (scaled_rows(C) > 0) ptx::warp_sync();  // every lane has read the scales
    feed.release_k(lane);
    if (--c.left == 0) feed.release_q(lane);
  }

  // The blocks of tile after tile, as if they were one row of blocks: while the tensor cores are
  // busy with the last product of a tile, the softmax of the next one is computed. V of that
  // product is then still held while K of the next tile is waited for, and the loader must come so
  // far with the other buffers: not where as many blocks as there are buffers are left to other
  // warpgroups.
  static OCTAVO_DEVICE void stream(const Sm90ForwardParams& p, const Lane& lane, Course c,
                                   u32& tile, Feed& feed) {
    using Loop = Mainloop<G>;
    const u32 q = Products<G>::q_descriptor(lane.group);
    State state;
    Scores scores;
    Probabilities prob;
    bool adds = false;
    Loop::begin_o(state);
    Loop::begin_rows(state.rows, p, row_scales(p, lane, tile));
    keep(value_scales(p, lane, tile), lane);
    Loop::start_qk(scores, q, feed.k);
    ptx::wgmma_wait<0>();
    Loop::finish_qk(scores, feed.k, lane.lane);
    release_scores(lane, c, feed);
    bool prepared = prepare(scores, p, lane, c, tile);
    Loop::softmax(scores, state.rows, p.scale_log2, true, prepared);
    Loop::wait_for_v(feed.v);
    Softmax<G>::pack_p(prob, scores, state.rows);
    while (true) {
      const bool crosses = c.left == 0;
      if (crosses) {
        const i32 rest = course_of(p, lane, tile).rest;
        if (rest >= C.stages) break;
        const Course next = await_tile(p, lane, tile + 1);
        if (next.left <= 0 || next.skipped > 0) break;
        for (i32 i = 0; i < rest; ++i) feed.pass_k(lane);
        c = next;
        ++tile;
      } else {
        c.key += C.block_n;
      }
      if constexpr (C.overlap) {
        Loop::start_qk(scores, q, feed.k);
        Loop::start_pv(state, prob, feed.v, adds);
        ptx::wgmma_wait<1>();
        Loop::finish_qk(scores, feed.k, lane.lane);
        release_scores(lane, c, feed);
        prepared = prepare(scores, p, lane, c, tile);
        const Rows before = state.rows;
        if (crosses) Loop::begin_rows(state.rows, p, row_scales(p, lane, tile));
        const auto behind = Loop::softmax(scores, state.rows, p.scale_log2, crosses, prepared);
        // V of a next tile, or of a single buffer, comes only after the release.
        const bool early = C.stages > 1 && !crosses;
        if (early) Loop::wait_for_v(feed.v.next());
        Loop::finish_pv(state, prob, feed.v, before);
        feed.release_v(lane);
        if (crosses) {
          end_tile(state, before, p, lane, tile - 1, feed);
          keep(value_scales(p, lane, tile), lane);
        } else {
          Loop::catch_up(state, behind);
        }
        if (!early) Loop::wait_for_v(feed.v);
        adds = !crosses;
        Softmax<G>::pack_p(prob, scores, state.rows);
      } else {
        Loop::pv_then_qk(state, prob, feed.v, scores, q, feed.k, adds);
        feed.release_v(lane);
        if (crosses) next_tile(state, p, lane, tile, feed);
        const bool there = Loop::has_v(feed.v);
        ptx::wgmma_wait<0>();
        Loop::finish_qk(scores, feed.k, lane.lane);
        release_scores(lane, c, feed);
        prepared = prepare(scores, p, lane, c, tile);
        Loop::take_origins(scores, state, p.scale_log2, crosses);
        adds = !crosses;
        Loop::exponentials(scores, state.rows, p.scale_log2, prepared);
        Softmax<G>::pack_p(prob, scores, state.rows);
        Loop::wait_for_v(feed.v, there);
      }
    }
    Loop::start_pv(state, prob, feed.v, adds);
    Loop::finish_pv(state, prob, feed.v, state.rows);
    feed.release_v(lane);
    feed.pass(course_of(p, lane, tile).rest, lane);
    store(state, state.rows, p, lane, tile);
  }

  static OCTAVO_DEVICE void math(const Sm90ForwardParams& p, u32 group) {
    const Lane lane{group, ptx::warp_index() % 4, ptx::lane_index()};
    G::wait_for_scales();
    Feed feed;
    u32 tile = 0;
    for (Course c = await_tile(p, lane, 0); c.left >= 0; c = await_tile(p, lane, ++tile)) {
      feed.pass(c.skipped, lane);
      if (c.left > 0) {
        stream(p, lane, c, tile, feed);
      } else {
        feed.pass(c.rest, lane);
        Epilogue<G>::store_nothing(p, place_of(lane, tile));
        feed.release_q(lane);
      }
    }
    if constexpr (Epilogue<G>::kStages) Epilogue<G>::wait_for_store(lane);  // goes with the CTA
  }

  // --- entry ------------------------------------------------------------------------------------

  static OCTAVO_DEVICE void init_barriers() {
    OCTAVO_UNROLL
    for (u32 group = 0; group < C.warpgroups; ++group) {
      ptx::mbarrier_init(G::q_full(group), 1);
      ptx::mbarrier_init(G::q_empty(group), 4);
    }
    OCTAVO_UNROLL
    for (u32 stage = 0; stage < C.stages; ++stage) {
      ptx::mbarrier_init(G::k_full(stage), scaled_rows(C) > 0 ? 2 : 1);
      ptx::mbarrier_init(G::k_empty(stage), kWarps);
      ptx::mbarrier_init(G::v_full(stage), 1);
      ptx::mbarrier_init(G::v_empty(stage), kWarps);
    }
    ptx::mbarrier_init(G::tail_full(), 1);
    ptx::spare("fence.proxy.async of the same thread follows");
    ptx::fence_mbarrier_init();
  }

  static OCTAVO_DEVICE void entry(const Sm90ForwardParams& p) {
    if (ptx::thread_index() == 0) {
      ptx::prefetch_tensor_map(&p.q);
      ptx::prefetch_tensor_map(&p.k);
      ptx::prefetch_tensor_map(&p.v);
      init_barriers();
    }
    G::template fill_ones<threads(C)>(ptx::thread_index());
    if constexpr (!G::kOnes && !G::kBiased)
      ptx::spare("only barriers were written, and have a fence of their own");
    ptx::fence_proxy_async();
    ptx::cta_sync();
    const u32 group = ptx::warp_index() / 4;
    if (group == C.warpgroups) {
      if constexpr (C.warpgroups > 1) ptx::decrease_registers<load_registers(C)>();
      if (ptx::warp_index() % 4 == 0) Loader<G>::run(p);
    } else {
      if constexpr (C.warpgroups > 1) ptx::increase_registers<math_registers(C)>();
      math(p, group);
    }
  }
};

template <class Config>
OCTAVO_KERNEL(threads(Config::value), Config::value.ctas)
sm90_forward(const OCTAVO_GRID_CONSTANT ParamsOf<Config> p) {
  if constexpr (Config::value.split_keys)
    SplitKernel<Config>::entry(p);
  else
    ForwardKernel<Config>::entry(p);
}

}  // namespace octavo::sm90
