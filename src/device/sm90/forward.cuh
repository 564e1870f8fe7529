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
//   o               the same (over q where own_o is off)
//   k[stages]       block_n rows, blocks of 64 columns         k_stage each
//   v[stages]       the same; with ones, a block more          v_stage each
//   ones            16 rows of them, where V is one block wide
//
//   barrier       who arrives                         who waits            becomes true
//   q_full[g]     the loader, and Q's bytes           warpgroup g          Q of the tile is there
//   q_empty[g]    the 4 warps of warpgroup g          the loader           Q (and O) may be
//   replaced k_full[s]     the loader, and K's bytes           all math warpgroups  K of a block is
//   there k_empty[s]    4 warps a warpgroup                 the loader           all scores are
//   computed v_full[s], v_empty[s]                             the same for V last_barrier  the
//   loader, and V's bytes           the loader           V's last rows can be cleared
//
// A block's timeline is in mainloop.cuh. While one warpgroup is in its softmax, the others keep the
// tensor cores busy.
#pragma once

#include "config/sm90_forward.h"
#include "device/ptx/fence.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/tma.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/sm90/epilogue.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/mainloop.cuh"
#include "device/sm90/schedule.cuh"
#include "device/sm90/split.cuh"

namespace octavo::sm90 {

template <class Config>
struct ForwardKernel {
  using G = Geometry<Config>;
  using Place = typename G::Place;
  using State = typename G::State;
  using KvRing = typename G::KvRing;
  using Tiles = TileLoop<G::C.persistent>;
  static constexpr Sm90Forward C = G::C;
  static constexpr u32 kWarps = C.warpgroups * 4;  // that compute

  static OCTAVO_DEVICE Tile tile_of(const Sm90ForwardParams& p, const Tiles& tiles) {
    return tile_at<block_m(C), C.block_n>(p, tiles.index);
  }

  // --- load -------------------------------------------------------------------------------------

  static OCTAVO_DEVICE void load_q(const Sm90ForwardParams& p, const Tile& t, u32 phase,
                                   bool leader) {
    OCTAVO_UNROLL
    for (u32 group = 0; group < C.warpgroups; ++group) {
      ptx::mbarrier_wait(G::q_empty(group), phase);
      if (!leader) continue;
      ptx::mbarrier_arrive_expect_tx(G::q_full(group), G::S.q_tile);
      G::load_rows(p.q, G::q_tile(group), G::q_full(group), kRows,
                   t.at.q_begin + t.first_row + static_cast<i32>(group) * kRows, t.head, t.batch);
    }
  }

  static OCTAVO_DEVICE void load_k(const Sm90ForwardParams& p, const Tile& t, i32 block,
                                   KvRing& ring, bool leader) {
    ptx::mbarrier_wait(G::k_empty(ring.stage), ring.phase ^ 1);
    if (leader) {
      ptx::mbarrier_arrive_expect_tx(G::k_full(ring.stage), G::S.k_stage);
      G::load_rows(p.k, G::k_tile(ring.stage), G::k_full(ring.stage), C.block_n,
                   t.at.kv_begin + t.begin + block * C.block_n, t.head / p.heads_per_kv, t.batch);
    }
    ring.advance();
  }

  static OCTAVO_DEVICE void load_v(const Sm90ForwardParams& p, const Tile& t, i32 block,
                                   KvRing& ring, u32& tail_phase, bool leader) {
    ptx::mbarrier_wait(G::v_empty(ring.stage), ring.phase ^ 1);
    const i32 key = t.begin + block * C.block_n;
    const bool cuts_sequence = p.cu_seqlens_kv != nullptr && key + C.block_n > t.at.len_kv;
    const u32 bar = cuts_sequence ? G::last_barrier() : G::v_full(ring.stage);
    if (leader) {
      ptx::mbarrier_arrive_expect_tx(bar, G::S.k_stage);
      G::load_rows(p.v, G::v_tile(ring.stage), bar, C.block_n, t.at.kv_begin + key,
                   t.head / p.heads_per_kv, t.batch);
    }
    if (cuts_sequence) {
      ptx::mbarrier_wait(bar, tail_phase);
      tail_phase ^= 1;
      G::template clear_rows<32>(G::v_tile(ring.stage), t.at.len_kv - key, ptx::lane_index());
      ptx::fence_proxy_async();
      ptx::warp_sync();
      if (leader) ptx::mbarrier_arrive(G::v_full(ring.stage));
    }
    ring.advance();
  }

  // K comes a block ahead of V, as it is used.
  static OCTAVO_DEVICE void load(const Sm90ForwardParams& p) {
    const bool leader = ptx::elect_one();
    KvRing k, v;
    u32 q_phase = 1, tail_phase = 0;
    for (Tiles tiles; tiles.more(p); tiles.next(p)) {
      const Tile t = tile_of(p, tiles);
      if (t.blocks <= 0) continue;
      load_k(p, t, 0, k, leader);
      load_q(p, t, q_phase, leader);
      q_phase ^= 1;
      for (i32 block = 1; block < t.blocks; ++block) {
        load_k(p, t, block, k, leader);
        load_v(p, t, block - 1, v, tail_phase, leader);
      }
      load_v(p, t, t.blocks - 1, v, tail_phase, leader);
    }
  }

  // --- math -------------------------------------------------------------------------------------

  static OCTAVO_DEVICE void arrive(u32 bar, const Place& w) {
    if (w.lane == 0) ptx::mbarrier_arrive(bar);
  }

  // Buffers that the loader fills, and is told to fill again.
  struct Feed {
    KvRing k, v;
    OCTAVO_DEVICE void release_k(const Place& w) {
      arrive(G::k_empty(k.stage), w);
      k.advance();
    }
    OCTAVO_DEVICE void release_v(const Place& w) {
      arrive(G::v_empty(v.stage), w);
      v.advance();
    }
    OCTAVO_DEVICE void release_q(const Place& w) {
      if constexpr (C.own_o) arrive(G::q_empty(w.group), w);
    }
    // Blocks that other warpgroups need and this one does not.
    OCTAVO_DEVICE void pass(i32 blocks, const Place& w) {
      for (i32 i = 0; i < blocks; ++i) {
        ptx::mbarrier_wait(G::k_full(k.stage), k.phase);
        release_k(w);
        ptx::mbarrier_wait(G::v_full(v.stage), v.phase);
        release_v(w);
      }
    }
  };

  // The tile's blocks: those of this warpgroup's rows, and those it only lets pass.
  static OCTAVO_DEVICE void attend(State& state, const Sm90ForwardParams& p, const Tile& t,
                                   const Place& w, u32 q_phase, Feed& feed) {
    BlockRange range;
    i32 first = 0, last = 0;
    if (w.first_row < w.at.len_q) {
      range = block_range(p, w.at, w.first_row, kRows, C.block_n);
      if (range.begin < range.end) {
        first = (range.begin - t.begin) / C.block_n;
        last = div_up(range.end - t.begin, C.block_n);
      }
    }
    ptx::mbarrier_wait(G::q_full(w.group), q_phase);
    feed.pass(first, w);
    if (first < last)
      Mainloop<G>::run(state, p, w, range, t.begin + first * C.block_n, last - first, feed);
    else
      feed.release_q(w);
    feed.pass(t.blocks - last, w);
  }

  static OCTAVO_DEVICE void math(const Sm90ForwardParams& p, u32 group) {
    Place w;
    w.group = w.q_tile = group;
    w.warp = ptx::warp_index() % 4;
    w.lane = ptx::lane_index();
    Feed feed;
    u32 q_phase = 0;
    for (Tiles tiles; tiles.more(p); tiles.next(p)) {
      const Tile t = tile_of(p, tiles);
      if (t.blocks < 0) continue;
      w.at = t.at;
      w.batch = t.batch;
      w.head = t.head;
      w.first_row = t.first_row + static_cast<i32>(group) * kRows;
      State state;
      Mainloop<G>::init(state);
      if (t.blocks > 0) attend(state, p, t, w, q_phase, feed);
      Epilogue<G>::finish(state, p, w);
      Epilogue<G>::store_o(state, p, w);
      if (t.blocks > 0) {
        q_phase ^= 1;
        if constexpr (!C.own_o) {
          Epilogue<G>::wait_for_store(w);
          arrive(G::q_empty(group), w);
        }
      }
    }
    Epilogue<G>::wait_for_store(w);  // its source goes with the CTA
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
      ptx::mbarrier_init(G::k_full(stage), 1);
      ptx::mbarrier_init(G::k_empty(stage), kWarps);
      ptx::mbarrier_init(G::v_full(stage), 1);
      ptx::mbarrier_init(G::v_empty(stage), kWarps);
    }
    ptx::mbarrier_init(G::last_barrier(), 1);
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
    ptx::fence_proxy_async();
    ptx::cta_sync();
    const u32 group = ptx::warp_index() / 4;
    if (group == C.warpgroups) {
      if constexpr (C.warpgroups > 1) ptx::decrease_registers<load_registers(C)>();
      if (ptx::warp_index() % 4 == 0) load(p);
    } else {
      if constexpr (C.warpgroups > 1) ptx::increase_registers<math_registers(C)>();
      math(p, group);
    }
  }
};

template <class Config>
OCTAVO_KERNEL(threads(Config::value), 1)
sm90_forward(const OCTAVO_GRID_CONSTANT Sm90ForwardParams p) {
  if constexpr (Config::value.split_keys)
    SplitKernel<Config>::entry(p);
  else
    ForwardKernel<Config>::entry(p);
}

}  // namespace octavo::sm90
