// SPDX-License-Identifier: Apache-2.0
// Attention of a few query tokens over a long KV cache: o = softmax(scale * q k^T) v.
//
// Decoding reads every row of K and V once and computes little with it, so the kernel is designed
// to keep all SMs reading. A persistent grid divides the keys of all sequences and KV heads evenly,
// in KV tiles of tile_keys keys (schedule.cuh). The query heads that share a KV head form the rows
// of a work tile (pack_gqa). Each warp copies its own keys of a KV tile (cp.async) and computes
// with them, with its own running maximum, sum and O, so warps do not wait for each other until the
// end of a work tile.
//
//   shared memory    what                                        bytes
//   stage[stages]    tile_keys rows of K, then of V, then the    stage_bytes
//                    scales of the keys of an 8-bit cache
//   rows             reference maximum and sum of every row and  exchange_rows_bytes
//                    warp, at the end of a work tile
//   q                Q as mma fragments, if registers are short  q_bytes
//   gather           parts from the CTAs of the cluster          gather_bytes
//
//   time (stages = 3)   copies in flight         every warp
//   KV tile j           stage[j+1], stage[j+2]   wait for its part of stage[j], warp barrier,
//                                                start stage[j+2], s = q k^T, softmax, o += p v
//   last of a work tile                          add up O over the warps, through stage[j]
//   The one barrier of a KV tile has two effects: the copies of all lanes have arrived, and all
//   lanes are done with stage[j-1], which the copies of the step overwrite. Copies run ahead into
//   the next work tile and sequence.
//
// With clusters (DecodeConfig) each work tile has a cluster of CTAs instead, which divide its keys
// and add up their parts (cluster.cuh). Otherwise, if several CTAs compute parts of a work tile
// (parts.cuh), each writes a partial result to the workspace, and device/decode/combine.cuh adds
// them up. The order of every sum is fixed by the lengths and the size of the grid, so a run can be
// repeated bit by bit; with batch_invariant it is fixed by the length of the sequence alone.
#pragma once

#include "config/decode.h"
#include "device/decode/cluster.cuh"
#include "device/decode/exchange.cuh"
#include "device/decode/geometry.cuh"
#include "device/decode/loads.cuh"
#include "device/decode/parts.cuh"
#include "device/decode/policies.cuh"
#include "device/decode/schedule.cuh"
#include "device/decode/step.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/prefetch.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/warpgroup.cuh"

namespace octavo::decode {

template <class Config>
struct DecodeKernel {
  using G = Geometry<Config>;
  using Thread = typename G::Thread;
  using State = typename G::State;
  using QFragments = typename G::QFragments;
  static constexpr DecodeConfig C = G::C;
  using Tiles = Schedule<tile_keys(C), /*kOverlaps=*/false>;
  using Parts = typename SelectParts<Tiles, C.batch_invariant>::Type;
  static_assert(C.stages >= 2, "copies run at least one KV tile ahead");

  // The position of the next copy, and how many copies are left to start.
  struct Copies {
    Cursor at;
    typename Loads<G>::KvHead head;
    typename Loads<G>::Rows rows;
    i32 left;

    OCTAVO_DEVICE Copies(const Params& p, const Cursor& first, i32 count, const Thread& thread)
        : at(first), head(p, first, thread), left(count) {
      rows.find(p, at, head, thread);
    }
  };
  // Starts the copies of the next KV tile. Past the last one it commits a group without copies, so
  // that cp_async_wait still counts one group for each round.
  template <class TilesOf>
  static OCTAVO_DEVICE void load_next(Copies& copies, const Params& p, const TilesOf& tiles,
                                      const Thread& thread, int stage) {
    if (copies.left > 0) {
      Loads<G>::load_kv(p, copies.head, copies.rows, thread, stage);
      if (--copies.left > 0) {
        tiles.advance(copies.at);
        if (copies.at.kv_tile == 0) copies.head = {p, copies.at, thread};
        // The page table is read a round ahead, so that no copy waits for it.
        copies.rows.find(p, copies.at, copies.head, thread);
      }
    }
    ptx::cp_async_commit();
  }

  // The CTA's current work tile, with its Q, softmax state and O.
  struct Work {
    WorkTile tile;
    typename G::Q q;
    float scale;  // from q k to log2 units; includes K's scale where each head has one
    State state;

    OCTAVO_DEVICE void start(const Params& p, const Cursor& at, const Thread& thread) {
      tile = work_tile_of<C.block_m>(p, at);
      QFragments loaded{};
      Loads<G>::load_q(loaded, p, tile, thread);
      q.share(loaded, thread);
      state.clear();
      scale = p.negate ? -p.scale_log2 : p.scale_log2;
      scale *= NumericsOf<G>::k_head_scale(p, tile);
    }
  };

  static OCTAVO_DEVICE int next(int stage) { return stage + 1 == C.stages ? 0 : stage + 1; }

  // The KV tiles of one work tile.
  struct OneWorkTile {
    static OCTAVO_DEVICE Cursor find(const Params& p, i32 work_tile) {
      Cursor at;
      at.sequence = p.by_work_tiles.quotient(work_tile);
      const i32 in_sequence = work_tile - at.sequence * p.heads_kv * p.row_tiles;
      at.kv_head = p.by_row_tiles.quotient(in_sequence);
      at.row_tile = in_sequence - at.kv_head * p.row_tiles;
      at.keys = sequence_keys<tile_keys(C), /*kOverlaps=*/false>(p, at.sequence);
      return at;
    }
    static OCTAVO_DEVICE void advance(Cursor& at) { ++at.kv_tile; }
  };

  // Computes `last - first` KV tiles, of which `at` is the first, and `first` is its number. At the
  // end of each part of a work tile it calls end_part(work, at, index, stage).
  template <class TilesOf, class EndPart>
  static OCTAVO_DEVICE void run(const Params& p, const TilesOf& tiles, Cursor at, i32 first,
                                i32 last, const Thread& thread, const EndPart& end_part) {
    Copies copies(p, at, last - first, thread);
    Work work;
    int load_stage = 0, stage = 0;
    // The first stages - 1 rounds only start copies. Q is loaded behind them.
    const i32 before_first = first - (C.stages - 1);
    OCTAVO_ROLLED
    for (i32 index = before_first; index < last; ++index) {
      if (index >= first) {
        if (index == first || Parts::begins(at)) work.start(p, at, thread);
        ptx::cp_async_wait<C.stages - 2>();
        ptx::warp_sync();
      }
      load_next(copies, p, tiles, thread, load_stage);
      load_stage = next(load_stage);
      if (index < first) continue;

      const i32 key = at.keys.range.begin + at.kv_tile * tile_keys(C) +
                      static_cast<i32>(thread.warp) * C.block_n;
      if (key < at.keys.range.end)
        Step<G>::run(work.state, work.q, p, work.tile, at.keys, work.scale, key, thread, stage);

      if (Parts::ends(at) || index + 1 == last) end_part(work, at, index, stage);
      if (index + 1 < last) tiles.advance(at);
      stage = next(stage);
    }
    ptx::cp_async_wait<0>();
  }

  // The grid brings the page table into L2 while it reads the lengths, which say what each CTA
  // needs of it. Each thread fetches one line at most, so the end of a large table is left out.
  static OCTAVO_DEVICE void prefetch_page_table(const Params& p) {
    constexpr i64 kEntries = 32;  // of a cache line
    const i64 thread = static_cast<i64>(ptx::block_index_x()) * threads(C) + ptx::thread_index();
    if (thread * kEntries < p.paging.entries) ptx::prefetch_l2(p.paging.table + thread * kEntries);
  }

  // The CTA's share of the KV tiles of all work tiles.
  static OCTAVO_DEVICE void run_share(const Params& p, const Thread& thread) {
    const Tiles tiles(p);
    const i32 cta = ptx::block_index_x();
    const i32 first = Parts::first_tile(tiles, cta), last = Parts::first_tile(tiles, cta + 1);
    if (first == last) return;
    run(p, tiles, tiles.find(first), first, last, thread,
        [&](Work& work, const Cursor& at, i32 index, int stage) {
          const i32 partial = Parts::partial(p, at, index, first);
          Exchange<G>::run(work.state, p, work.tile, thread, stage, [&](const auto& row) {
            Exchange<G>::store(p, work.tile, at.keys.span, partial, row, thread);
          });
        });
  }

  // The CTA's part of the work tile of its cluster.
  static OCTAVO_DEVICE void run_cluster(const Params& p, const Thread& thread) {
    const OneWorkTile tiles;
    Cursor at = tiles.find(p, ptx::block_index_x() >> p.log2_cluster);
    const WorkTile tile = work_tile_of<C.block_m>(p, at);
    const Cluster<G> cluster(p, tile.rows, at.keys.kv_tiles);
    cluster.prepare();
    const i32 first = cluster.first_tile(cluster.rank), last = cluster.first_tile(cluster.rank + 1);
    at.kv_tile = first;
    if (first == last)
      ptx::cluster_wait();
    else
      run(p, tiles, at, first, last, thread, [&](Work& work, const Cursor&, i32, int stage) {
        ptx::cluster_wait();  // the barriers of all CTAs are ready
        Exchange<G>::run(work.state, p, work.tile, thread, stage,
                         [&](const auto& row) { Exchange<G>::send(cluster, row, thread); });
      });
    cluster.finish(p, tile, at.keys.span);
  }

  static OCTAVO_DEVICE void entry(const Params& p) {
    // Lets the combine kernel start early. It waits until this grid is complete.
    if constexpr (C.arch >= 90) ptx::launch_dependent_grids();
    const Thread thread{ptx::warp_index(), ptx::lane_index()};
    prefetch_page_table(p);
    if constexpr (C.clusters)
      run_cluster(p, thread);
    else
      run_share(p, thread);
  }
};

template <class Config>
OCTAVO_KERNEL(threads(Config::value), Config::value.min_ctas)
decode_attention(const OCTAVO_GRID_CONSTANT Params p) {
  DecodeKernel<Config>::entry(p);
}

}  // namespace octavo::decode
