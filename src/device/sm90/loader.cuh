// The warp that loads: Q once a tile, K and V block after block, as buffers become empty.
#pragma once

#include "device/ptx/fence.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/thread.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/schedule.cuh"

namespace octavo::sm90 {

template <class G>
struct Loader {
  using KvRing = typename G::KvRing;
  using Tiles = TileLoop<G::C.persistent>;
  static constexpr Sm90Forward C = G::C;

  static OCTAVO_DEVICE Tile tile_of(const Sm90ForwardParams& p, const Tiles& tiles) {
    return tile_at<block_m(C), C.block_n>(p, tiles.index);
  }

  // One lane loads, and what it starts may let the next phase of a barrier pass: by then all lanes
  // must have seen this one.
  static OCTAVO_DEVICE void wait_together(u32 bar, u32 parity) {
    ptx::mbarrier_wait(bar, parity);
    ptx::warp_sync();
  }

  // Announces the tile to every warpgroup, with its rows of Q unless it has no keys.
  static OCTAVO_DEVICE void load_q(const Sm90ForwardParams& p, const Tile& t, u32 count,
                                   bool leader) {
    OCTAVO_UNROLL
    for (u32 group = 0; group < C.warpgroups; ++group) {
      wait_together(G::q_empty(group), ~count & 1);
      if (!leader) continue;
      if (group == 0) TileBoard<G>::write(count, t);
      if (t.blocks <= 0) {
        ptx::mbarrier_arrive(G::q_full(group));
        continue;
      }
      ptx::mbarrier_arrive_expect_tx(G::q_full(group), G::S.q_tile);
      G::load_rows(p.q, G::q_tile(group), G::q_full(group), kRows,
                   t.at.q_begin + t.first_row + static_cast<i32>(group) * kRows, t.head, t.batch);
    }
  }

  static OCTAVO_DEVICE void load_k(const Sm90ForwardParams& p, const Tile& t, i32 block,
                                   KvRing& ring, bool leader) {
    wait_together(G::k_empty(ring.stage()), ring.phase() ^ 1);
    if (leader) {
      ptx::mbarrier_arrive_expect_tx(G::k_full(ring.stage()), G::S.k_stage);
      G::load_rows(p.k, G::k_tile(ring.stage()), G::k_full(ring.stage()), C.block_n,
                   t.at.kv_begin + t.begin + block * C.block_n, p.by_heads_per_kv.quotient(t.head),
                   t.batch);
    }
    if constexpr (scaled_rows(C) > 0) {
      G::template load_key_scales<32>(p, t.at, t.sequence, t.begin + block * C.block_n,
                                      p.by_heads_per_kv.quotient(t.head), ring.stage(),
                                      ptx::lane_index());
      ptx::spare("they are read after V of the block before, or the tile, for which lanes met");
      ptx::warp_sync();
      if (leader) ptx::mbarrier_arrive(G::k_full(ring.stage()));
    }
    ring.advance();
  }

  static OCTAVO_DEVICE void load_v(const Sm90ForwardParams& p, const Tile& t, i32 block,
                                   KvRing& ring, u32& tail_phase, bool leader) {
    wait_together(G::v_empty(ring.stage()), ring.phase() ^ 1);
    const i32 key = t.begin + block * C.block_n;
    const bool cuts_sequence = p.cu_seqlens_kv != nullptr && key + C.block_n > t.at.len_kv;
    const u32 bar = cuts_sequence ? G::tail_full() : G::v_full(ring.stage());
    if (leader) {
      ptx::mbarrier_arrive_expect_tx(bar, G::S.v_bytes);
      G::load_v(p, G::v_tile(ring.stage()), bar, t.at, t.sequence, key,
                p.by_heads_per_kv.quotient(t.head), t.batch);
    }
    if (cuts_sequence) {
      wait_together(bar, tail_phase);
      tail_phase ^= 1;
      G::template clear_keys<32>(G::v_tile(ring.stage()), t.at.len_kv - key, ptx::lane_index());
      ptx::fence_proxy_async();
      ptx::spare("it is used only after the next tile is announced, before which these lanes meet");
      ptx::warp_sync();
      if (leader) ptx::mbarrier_arrive(G::v_full(ring.stage()));
    }
    ring.advance();
  }

  // K comes a block ahead of V, as it is used.
  static OCTAVO_DEVICE void run(const Sm90ForwardParams& p) {
    // All who touch memory wait for what this warp loads or announces.
    if constexpr (C.early_start) ptx::wait_for_earlier_grids();
    const bool leader = ptx::elect_one();
    KvRing k, v;
    u32 count = 0, tail_phase = 0;
    for (Tiles tiles; tiles.more(p); tiles.next(p)) {
      const Tile t = tile_of(p, tiles);
      if (t.blocks < 0) continue;
      if (t.blocks > 0) load_k(p, t, 0, k, leader);
      load_q(p, t, count++, leader);
      for (i32 block = 1; block < t.blocks; ++block) {
        load_k(p, t, block, k, leader);
        load_v(p, t, block - 1, v, tail_phase, leader);
      }
      if (t.blocks > 0) load_v(p, t, t.blocks - 1, v, tail_phase, leader);
    }
    if constexpr (C.early_start) ptx::launch_dependent_grids();
    Tile end{};
    end.blocks = TileBoard<G>::kNoMore;
    load_q(p, end, count, leader);
  }
};

}  // namespace octavo::sm90
