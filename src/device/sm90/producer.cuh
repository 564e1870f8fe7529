// SPDX-License-Identifier: Apache-2.0
// The producer warp: loads Q once for each tile, and K and V block by block as stages become empty.
#pragma once

#include "device/ptx/fence.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/sm90/block_mask.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/k_slices.cuh"
#include "device/sm90/loads.cuh"
#include "device/sm90/scheduler.cuh"

namespace octavo::sm90 {

template <class G, class N>
struct Producer {
  using KvState = typename G::KvState;
  using Slots = WorkTileSlots<G>;
  using Listed = ListedBlocks<G>;
  using ListedKeys = typename Listed::Keys;
  static constexpr Sm90ForwardConfig C = G::C;

  // One lane loads, and its load may complete the barrier's next phase, so all lanes must have seen
  // the current phase first.
  static OCTAVO_DEVICE void wait_as_warp(u32 bar, u32 parity) {
    ptx::mbarrier_wait(bar, parity);
    ptx::warp_sync();
  }

  // Publishes tile number `count` to all warpgroups and, if it has keys, loads its Q. q_full
  // signals both.
  static OCTAVO_DEVICE void publish_tile(const Sm90ForwardParams& p, const WorkTile& t, u32 count,
                                         bool leader) {
    OCTAVO_UNROLL
    for (u32 group = 0; group < C.warpgroups; ++group) {
      // A fresh barrier passes a wait for the previous parity, so the first tile (and with
      // phase() ^ 1 below the first round of stages) does not block.
      wait_as_warp(G::q_empty(group), ~count & 1);
      if (!leader) continue;
      if (group == 0) Slots::publish(count, t);
      if (t.n_blocks <= 0) {
        ptx::mbarrier_arrive(G::q_full(group));
        continue;
      }
      ptx::mbarrier_arrive_expect_tx(G::q_full(group), G::S.q_tile);
      load_rows(p.q, G::q_tile(group), G::q_full(group), kRows,
                t.span.q_begin + t.first_row + static_cast<i32>(group) * kRows, head_of<C>(t),
                t.batch, qk_panels(C));
    }
  }

  // key_of: the first key of the tile's visit-th block, or of the first listed block. keys_of: the
  // argument of the loads, which is that key, or the keys of all listed blocks.
  static OCTAVO_DEVICE i32 key_of(const WorkTile& t, i32 visit) { return first_key<G>(t, visit); }
  static OCTAVO_DEVICE i32 key_of(const WorkTile&, const ListedKeys& visit) { return visit.key[0]; }
  static OCTAVO_DEVICE i32 keys_of(i32 /*visit*/, i32 n) { return n; }
  static OCTAVO_DEVICE ListedKeys keys_of(const ListedKeys& visit, i32 /*n*/) { return visit; }

  template <class Visit>
  static OCTAVO_DEVICE void load_k(const Sm90ForwardParams& p, const WorkTile& t, Visit visit,
                                   KvState& k, bool leader) {
    if constexpr (k_slices(C) > 1)
      return KSlices<G>::load(p, t.span.kv_begin + key_of(t, visit),
                              p.by_heads_per_kv.quotient(head_of<C>(t)), t.batch, k, leader);
    wait_as_warp(G::k_empty(k.stage()), k.phase() ^ 1);
    const i32 n = key_of(t, visit);
    const auto keys = keys_of(visit, n);
    if (leader) {
      Listed::publish(k.stage(), visit);
      ptx::mbarrier_arrive_expect_tx(G::k_full(k.stage()), G::S.k_stage);
      OCTAVO_UNROLL
      for (int row = 0; row < C.block_n; row += loaded_keys(C))
        load_rows(p.k, G::k_tile(k.stage()) + row * G::kRowBytes, G::k_full(k.stage()), C.block_n,
                  t.span.kv_begin + key_at<G>(keys, row), p.by_heads_per_kv.quotient(head_of<C>(t)),
                  t.batch, qk_panels(C));
    }
    if constexpr (scaled_keys(C) > 0) {
      N::template load_k_scales<32>(p, t.span, t.sequence, keys, p.by_heads_per_kv.quotient(t.head),
                                    k.stage(), ptx::lane_index());
      ptx::spare("the scales are read only after a later load, before which the lanes synchronise");
      ptx::warp_sync();
      if (leader) ptx::mbarrier_arrive(G::k_full(k.stage()));
    }
    k.advance();
  }

  template <class Visit>
  static OCTAVO_DEVICE void load_v(const Sm90ForwardParams& p, const WorkTile& t, Visit visit,
                                   KvState& v, u32& tail_phase, bool leader) {
    wait_as_warp(G::v_empty(v.stage()), v.phase() ^ 1);
    const i32 n = key_of(t, visit);
    // Rows after the last key are another sequence's or padding in a varlen or padded batch.
    // Otherwise they are outside the tensor, and TMA fills them with zeros.
    const bool has_neighbours = C.modifiers.padded || p.cu_seqlens_kv != nullptr;
    const bool crosses_end = has_neighbours && n + C.block_n > t.span.seqlen_kv;
    const u32 bar = crosses_end ? G::tail_full() : G::v_full(v.stage());
    if (leader) {
      ptx::mbarrier_arrive_expect_tx(bar, G::S.v_bytes);
      if constexpr (column_tiles(C) > 1)
        load_rows(p.v, G::v_tile(v.stage()), bar, C.block_n, t.span.kv_begin + n,
                  p.by_heads_per_kv.quotient(head_of<C>(t)), t.batch, v_panels(C),
                  first_column_of<C>(t));
      else
        N::load_v(p, G::v_tile(v.stage()), bar, t.span, t.sequence, keys_of(visit, n),
                  p.by_heads_per_kv.quotient(t.head), t.batch);
    }
    if (crosses_end) {
      wait_as_warp(bar, tail_phase);
      tail_phase ^= 1;
      N::template clear_v_tail<32>(G::v_tile(v.stage()), t.span.seqlen_kv - n, ptx::lane_index());
      ptx::fence_proxy_async();
      if (!starts_at_diagonal(C))
        ptx::spare("V is read only after the next tile is published, before which lanes sync");
      ptx::warp_sync();
      if (leader) ptx::mbarrier_arrive(G::v_full(v.stage()));
    }
    v.advance();
  }

  // Brings the lists and Q of the CTA's next tile into L2, while this tile is computed.
  static OCTAVO_DEVICE void prefetch_next_tile(const Sm90ForwardParams& p, TileScheduler tiles,
                                               bool leader) {
    tiles.advance(p);
    if (!tiles.has_tile(p)) return;
    const WorkTile t = work_tile<G>(p, tiles.index);
    Listed::prefetch(p, t, ptx::lane_index());
    if (!leader) return;
    constexpr Panels kPanels = qk_panels(C);
    OCTAVO_UNROLL
    for (int row = 0; row < block_m(C); row += kRows) {
      OCTAVO_UNROLL
      for (int panel = 0; panel < kPanels.count; ++panel)
        ptx::tma_prefetch(&p.q, {panel * kPanels.columns, t.span.q_begin + t.first_row + row,
                                 head_of<C>(t), t.batch});
    }
  }

  // The blocks of a block mask's lists. An entry is read one block before its K is loaded.
  static OCTAVO_DEVICE void load_listed_tile(const Sm90ForwardParams& p, const WorkTile& t,
                                             const TileScheduler& tiles, u32 count, KvState& k,
                                             KvState& v, u32& tail_phase, bool leader) {
    ListedKeys visit = Listed::keys(p, t, 0), next = Listed::keys(p, t, 1);
    if (t.n_blocks > 0) load_k(p, t, visit, k, leader);
    prefetch_next_tile(p, tiles, leader);
    publish_tile(p, t, count, leader);
    for (i32 number = 1; number < t.n_blocks; ++number) {
      const ListedKeys previous = visit;
      visit = next;
      next = Listed::keys(p, t, number + 1);
      load_k(p, t, visit, k, leader);
      load_v(p, t, previous, v, tail_phase, leader);
    }
    if (t.n_blocks > 0) load_v(p, t, visit, v, tail_phase, leader);
  }

  // Loads K one block ahead of V, the order in which consumers need them.
  static OCTAVO_DEVICE void run(const Sm90ForwardParams& p) {
    // Only this warp needs griddepcontrol.wait: every other thread touches global memory only after
    // a barrier that this warp signals.
    ptx::wait_for_earlier_grids();
    const bool leader = ptx::elect_one();
    KvState k, v;
    u32 count = 0, tail_phase = 0;
    for (TileScheduler tiles; tiles.has_tile(p); tiles.advance(p)) {
      const WorkTile t = work_tile<G>(p, tiles.index);
      if (t.n_blocks < 0) continue;
      if (has_block_mask(C)) {
        load_listed_tile(p, t, tiles, count++, k, v, tail_phase, leader);
      } else {
        if (t.n_blocks > 0) load_k(p, t, 0, k, leader);
        publish_tile(p, t, count++, leader);
        for (i32 n_block = 1; n_block < t.n_blocks; ++n_block) {
          load_k(p, t, n_block, k, leader);
          load_v(p, t, n_block - 1, v, tail_phase, leader);
        }
        if (t.n_blocks > 0) load_v(p, t, t.n_blocks - 1, v, tail_phase, leader);
      }
    }
    ptx::launch_dependent_grids();
    WorkTile end{};
    end.n_blocks = kNoMoreTiles;
    publish_tile(p, end, count, leader);
  }
};

}  // namespace octavo::sm90
