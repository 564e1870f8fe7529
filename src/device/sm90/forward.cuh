// SPDX-License-Identifier: Apache-2.0
// Forward attention on Hopper: O = softmax(scale * Q K^T) V, with wgmma and TMA.
//
// A work tile is 64 query rows for each consumer warpgroup, all of one head. CTAs are persistent:
// one on each SM computes tile after tile. One producer warp loads Q once for each tile, and K and
// V block by block into pipeline stages that all consumers read. While one consumer warpgroup is in
// its softmax, the others keep the tensor cores busy.
//
//   role       warps                  registers            does
//   consumer   4 x warpgroups         consumer_registers   S = Q K^T, softmax, O += P V, stores O
//   producer   1 (of a warpgroup)     producer_registers   TMA loads, as stages become empty
//
//   shared memory   what                                              bytes
//   q               64 rows for each warpgroup                        warpgroups * q_tile
//   o               64 rows for each warpgroup, if stores_o_by_tma    warpgroups * o_tile
//   k[stages]       block_n rows, in panels of columns                k_stage each
//   v[stages]       the same, and a panel of ones if kOnesInStage;    v_stage each
//                   8-bit: head_dim rows (transposed), in chunks of keys
//   ones            16 rows of ones, if V has a single panel; INT8: operands of the scores' bias
//   k_scales        8-bit with KScales::block or row: floats, for each stage
//   v_scales        8-bit: head_dim floats for each warpgroup
//   tile_slots      work tiles, from the producer to the consumers
//   listed          block masks: first keys and bits of the blocks in each stage  listed_bytes each
//
// clang-format off
//   barrier       arrives                       waits                  becomes true
//   q_full[g]     producer, and Q's bytes       warpgroup g            tile published, Q loaded
//   q_empty[g]    4 warps of warpgroup g        producer               Q may be replaced
//   k_full[s]     producer, and K's bytes       all consumers          a block of K and its scales
//                 (twice with scales)                                  are loaded
//   k_empty[s]    4 warps of each warpgroup     producer               all warpgroups have their S
//   v_full[s], v_empty[s]                                              the same for V
//   tail_full     producer, and V's bytes       producer               V's tail can be zeroed
// clang-format on
//
// The timeline of one block is in mainloop.cuh.
#pragma once

#include "config/sm90_forward.h"
#include "device/ptx/fence.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/tma.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/sm90/block_mask.cuh"
#include "device/sm90/epilogue.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/mainloop.cuh"
#include "device/sm90/modifiers.cuh"
#include "device/sm90/numerics/select.cuh"
#include "device/sm90/producer.cuh"
#include "device/sm90/scheduler.cuh"
#include "device/sm90/split_kv.cuh"

namespace octavo::sm90 {

// A consumer warpgroup: visits the key blocks of its tiles as one stream, and stores O of each
// tile. The main loop does not stop between tiles: while the tensor cores compute the last product
// of a tile, the softmax of the next one runs.
template <class G, class N>
struct Consumer {
  using ThreadCoord = typename G::ThreadCoord;
  using RowTile = typename G::RowTile;
  using KvState = typename G::KvState;
  using State = typename N::State;
  using Rows = typename N::Rows;
  using Slots = WorkTileSlots<G>;
  using Modifier = ScoreModifier<G>;
  using Listed = ListedBlocks<G>;
  static constexpr Sm90ForwardConfig C = G::C;

  // How far the warpgroup is in its tile. The tile's blocks are those that any of its warpgroups
  // needs; this one may need only some of them.
  struct TileProgress {
    i32 blocks_left = 0;  // own blocks whose K is not yet released; negative: there is no tile
    i32 n = 0;            // first key of the current block
    i32 skip_before = 0, skip_after = 0;  // blocks before and after, for other warpgroups only
    i32 ascending = 0;                    // the last own blocks, if they begin at the diagonal
    i32 full_begin = 0, full_end = 0;     // blocks in between need no mask
  };

  const Sm90ForwardParams& p;
  ThreadCoord thread;
  KvState k, v;
  u32 tile_number = 0;  // counts the CTA's tiles
  TileProgress progress{};
  bool new_tile = false;
  u32 score_phase = 0;               // of the next score tiles
  typename Modifier::Alibi alibi{};  // of the tile
  typename Listed::Keys listed{};    // with a block mask: those of the current block

  OCTAVO_DEVICE Consumer(const Sm90ForwardParams& params, const ThreadCoord& t)
      : p(params), thread(t) {}

  // --- tiles ------------------------------------------------------------------------------------

  OCTAVO_DEVICE TileProgress progress_of(u32 tile) const {
    const WorkTile t = Slots::read(tile);
    if (t.n_blocks == kNoMoreTiles) return {.blocks_left = -1};
    const i32 first_row = t.first_row + static_cast<i32>(thread.group) * kRows;
    const bool before_first_row = may_shift_rows(C) && first_row < 0;
    if (before_first_row || first_row >= t.span.seqlen_q) return {.skip_after = t.n_blocks};
    const BlockRange range = block_range(p, t.span, first_row, kRows, C.block_n);
    if (range.begin >= range.end) return {.skip_after = t.n_blocks};
    // Every warpgroup computes every listed block; release_k() reads from the stage which it is.
    if (has_block_mask(C))
      return {
          .blocks_left = t.n_blocks, .full_begin = range.full_begin, .full_end = range.full_end};
    const i32 first = (range.begin - t.n_begin) / C.block_n;
    const i32 last = div_up(range.end - t.n_begin, C.block_n);
    TileProgress own{.blocks_left = last - first,
                     .n = range.begin,
                     .skip_before = first,
                     .skip_after = t.n_blocks - last,
                     .full_begin = range.full_begin,
                     .full_end = range.full_end};
    if (starts_at_diagonal(C)) {
      // All warpgroups need all blocks, or the diagonal is the tile's last block.
      const i32 begin = min_of(t.diagonal, last - 1);
      own.n = t.n_begin + begin * C.block_n;
      own.skip_before = t.diagonal - begin;
      own.skip_after = first;
      own.ascending = t.n_blocks - 1 - first - t.diagonal;
    }
    return own;
  }
  // Waits for the tile and its Q.
  OCTAVO_DEVICE TileProgress wait_for_tile(u32 tile) const {
    ptx::mbarrier_wait(G::q_full(thread.group), tile & 1);
    return progress_of(tile);
  }
  // pin() hides where the lane came from, so that the compiler recomputes addresses instead of
  // keeping them in registers across the loop.
  OCTAVO_DEVICE RowTile row_tile(u32 tile) const {
    const WorkTile t = Slots::read(tile);
    RowTile rows;
    static_cast<ThreadCoord&>(rows) = thread;
    rows.span = t.span;
    rows.sequence = t.sequence;
    rows.batch = t.batch;
    rows.head = t.head;
    rows.take_column_tile(rows.head);
    rows.first_row = t.first_row + static_cast<i32>(thread.group) * kRows;
    if (starts_at_diagonal(C)) rows.alibi_slope = t.alibi_slope;
    ptx::pin(rows.lane);
    return rows;
  }

  // --- stages -----------------------------------------------------------------------------------

  OCTAVO_DEVICE void arrive(u32 bar) const {
    if (thread.lane == 0) ptx::mbarrier_arrive(bar);
  }
  OCTAVO_DEVICE void release_k_stage() {
    arrive(G::k_empty(k.stage()));
    k.advance();
  }
  OCTAVO_DEVICE void release_v() {
    arrive(G::v_empty(v.stage()));
    v.advance();
  }
  // Lane 0 arrives for the whole warp, so sync first: no lane may still be reading the tile slot.
  OCTAVO_DEVICE void release_q() const {
    ptx::warp_sync();
    arrive(G::q_empty(thread.group));
  }
  // Releases K of an own block, and Q after the tile's last one.
  OCTAVO_DEVICE void release_k() {
    if (has_block_mask(C)) listed = Listed::read(k.stage());
    if (has_block_mask(C)) progress.n = listed.key[0];
    // Lane 0 arrives for the warp: no lane may still be reading the scales or the listed block.
    if (scaled_keys(C) > 0 || has_block_mask(C)) ptx::warp_sync();
    release_k_stage();
    if (--progress.blocks_left == 0) release_q();
  }
  // Releases K of a block that only other warpgroups need. Only warp_sync keeps the lanes together.
  OCTAVO_DEVICE void skip_k() {
    if constexpr (k_slices(C) > 1) KSlices<G>::skip(*this);
    ptx::spare("a later load was seen, of V or of the next tile, so K of this one has been issued");
    ptx::mbarrier_wait(G::k_full(k.stage()), k.phase());
    ptx::warp_sync();
    release_k_stage();
  }
  OCTAVO_DEVICE void skip_v() {
    ptx::mbarrier_wait(G::v_full(v.stage()), v.phase());
    ptx::warp_sync();
    release_v();
  }
  OCTAVO_DEVICE void skip(i32 blocks) {
    for (i32 i = 0; i < blocks; ++i) {
      skip_k();
      skip_v();
    }
  }

  // --- for the main loop ------------------------------------------------------------------------

  // Moves to the next block, of this tile or of the next one. Returns false if this tile has to be
  // finished first.
  OCTAVO_DEVICE bool advance() {
    new_tile = progress.blocks_left == 0;
    if (new_tile) return enter_next_tile();
    next_block();
    return true;
  }
  // Enters the next tile while the last P V of this one is still to be issued. Returns false if the
  // next tile does not begin with a block for this warpgroup, or if entering would deadlock: this
  // warpgroup still holds the stage of its last V, so the producer can load fewer than `stages`
  // further blocks, which must include all that only other warpgroups need.
  OCTAVO_DEVICE bool enter_next_tile() {
    const i32 skip_after = progress_of(tile_number).skip_after;
    if (skip_after >= C.stages) return false;
    const TileProgress next = wait_for_tile(tile_number + 1);
    if (next.blocks_left <= 0 || next.skip_before > 0) return false;
    for (i32 i = 0; i < skip_after; ++i) skip_k();
    progress = next;
    ++tile_number;
    if (C.modifiers.alibi) alibi = Modifier::alibi_of(p, rows());
    return true;
  }
  // The next of the tile's blocks, in the order of first_key.
  OCTAVO_DEVICE void next_block() {
    if (has_block_mask(C)) return;
    const bool descends = starts_at_diagonal(C) && progress.blocks_left > progress.ascending;
    progress.n += descends ? -C.block_n : C.block_n;
    if (starts_at_diagonal(C) && progress.blocks_left == progress.ascending)
      progress.n = first_key<G>(Slots::read(tile_number), 1 + Slots::read(tile_number).diagonal);
  }
  OCTAVO_DEVICE bool is_new_tile() const { return new_tile; }
  // The producer has already zeroed the rows of V after the sequence's last key.
  OCTAVO_DEVICE void clear_v_tail(const KvState&) const {}

  OCTAVO_DEVICE void release_score_tiles() {
    ptx::warp_sync();  // every lane has read them
    arrive(G::score_empty(thread.group));
    score_phase ^= 1;
  }

  OCTAVO_DEVICE i32 key() const { return progress.n; }
  OCTAVO_DEVICE RowTile rows() const { return row_tile(tile_number); }
  OCTAVO_DEVICE bool hides_keys() const {
    if (has_block_mask(C)) return Listed::hides_keys(listed, progress);
    return needs_mask(progress.n, C.block_n, progress.full_begin, progress.full_end);
  }
  OCTAVO_DEVICE void modify(typename N::Scores& scores) {
    if constexpr (Modifier::kChangesBlocks) {
      const bool has_tiles = Modifier::Tensors::wait(p, thread.group, score_phase);
      Modifier::apply(scores, p, progress.n, alibi, [&] { return rows(); });
      if (has_tiles) release_score_tiles();
    }
    if (has_block_mask(C) && hides_keys()) Listed::template hide<N>(scores, p, rows(), listed);
  }

  // The tile is passed as a function, so numerics without scales never read it.
  OCTAVO_DEVICE auto load_row_scales() const {
    return N::load_row_scales(p, [&] { return row_tile(tile_number); });
  }
  OCTAVO_DEVICE auto load_v_scales() const {
    return N::load_v_scales(p, [&] { return row_tile(tile_number); });
  }
  OCTAVO_DEVICE void begin_rows(State& state) const {
    N::init_rows(state.rows, p.scale_log2, load_row_scales());
  }
  OCTAVO_DEVICE void store(State& state, const Rows& rows, u32 tile) const {
    const RowTile to = row_tile(tile);
    Epilogue<G, N>::finish(state, rows, p, to);
    if (C.output.amax) Epilogue<G, N>::store_amax(state, p, to);
    Epilogue<G, N>::store_o(state, p, to);
  }
  // Stores O of the previous tile, whose last product is complete, and begins O of the new one.
  OCTAVO_DEVICE void store_and_begin_o(State& state, const Rows& rows) {
    const i32 skip_after = progress_of(tile_number - 1).skip_after;
    for (i32 i = 0; i < skip_after; ++i) skip_v();
    store(state, rows, tile_number - 1);
    N::begin_o(state);
  }
  // `rows`: the row state of the previous tile; state.rows already belongs to the new tile.
  OCTAVO_DEVICE void store_previous_tile(State& state, const Rows& rows) {
    store_and_begin_o(state, rows);
    N::publish_v_scales(load_v_scales(), thread);
  }
  // The same, and begins the new tile's rows. Its scales are loaded before the store, to hide their
  // latency, in numerics that have registers for them.
  OCTAVO_DEVICE void store_previous_and_begin_rows(State& state) {
    typename N::RowScales row_scales;
    typename N::VScales v_scales;
    const auto load = [&] {
      row_scales = load_row_scales();
      v_scales = load_v_scales();
    };
    if (N::kLoadsScalesEarly) load();
    store_and_begin_o(state, state.rows);
    if (!N::kLoadsScalesEarly) load();
    N::init_rows(state.rows, p.scale_log2, row_scales);
    N::publish_v_scales(v_scales, thread);
  }

  // --- the consumer -----------------------------------------------------------------------------

  // Runs tiles until one must be stored before the next begins (enter_next_tile).
  OCTAVO_DEVICE void run_tiles() {
    State state;
    if (C.modifiers.alibi) alibi = Modifier::alibi_of(p, rows());
    N::begin_o(state);
    begin_rows(state);
    N::publish_v_scales(load_v_scales(), thread);
    Mainloop<G, N>::run(state, p, q_descriptor<G>(thread.group), thread.lane, *this);
    skip(progress_of(tile_number).skip_after);
    store(state, state.rows, tile_number);
  }
  OCTAVO_DEVICE void run() {
    N::wait_for_scales();
    for (progress = wait_for_tile(0); progress.blocks_left >= 0;
         progress = wait_for_tile(++tile_number)) {
      skip(progress.skip_before);
      if (progress.blocks_left > 0) {
        run_tiles();
      } else {
        skip(progress.skip_after);
        Epilogue<G, N>::store_empty(p, row_tile(tile_number));
        release_q();
      }
    }
    // The CTA must not exit before its shared memory has been read.
    if (stores_o_by_tma(C)) Epilogue<G, N>::wait_for_store(thread);
  }
};

template <class Config>
struct ForwardKernel {
  using G = Geometry<Config>;
  using N = NumericsOf<G>;
  static constexpr Sm90ForwardConfig C = G::C;
  static_assert(is_split_kv(C) || C.warpgroups >= 2 || has_block_mask(C),
                "needs two consumer warpgroups, or several CTAs on each SM, so that one computes "
                "products while the other is in its softmax");

  static OCTAVO_DEVICE void init_barriers() {
    constexpr u32 kConsumerWarps = C.warpgroups * 4;
    OCTAVO_UNROLL
    for (u32 group = 0; group < C.warpgroups; ++group) {
      ptx::mbarrier_init(G::q_full(group), 1);
      ptx::mbarrier_init(G::q_empty(group), 4);
      ScoreModifier<G>::Tensors::init_barriers(group);
    }
    OCTAVO_UNROLL
    for (u32 stage = 0; stage < C.stages * k_slices(C); ++stage) {
      ptx::mbarrier_init(G::k_full(stage), scaled_keys(C) > 0 ? 2 : 1);
      ptx::mbarrier_init(G::k_empty(stage), kConsumerWarps);
      ptx::mbarrier_init(G::v_full(stage), 1);
      ptx::mbarrier_init(G::v_empty(stage), kConsumerWarps);
    }
    ptx::mbarrier_init(G::tail_full(), 1);
    ptx::spare("fence.proxy.async of the same thread follows");
    ptx::fence_mbarrier_init();
  }

  static OCTAVO_DEVICE void run(const Sm90ForwardParams& p) {
    if (ptx::thread_index() == 0) {
      ptx::prefetch_tensor_map(&p.q);
      ptx::prefetch_tensor_map(&p.k);
      ptx::prefetch_tensor_map(&p.v);
      init_barriers();
    }
    N::template fill_constants<threads(C)>(ptx::thread_index());
    if (!N::kFillsConstants)
      ptx::spare("only barriers were written, and fence_mbarrier_init covers them");
    ptx::fence_proxy_async();
    ptx::cta_sync();
    const u32 group = ptx::warp_index() / 4;
    if (group == C.warpgroups) {
      ptx::decrease_registers<producer_registers(C)>();
      const u32 warp = ptx::warp_index() % 4;
      if (warp == 0) Producer<G, N>::run(p);
      if (warp > 0) ScoreModifier<G>::Tensors::run_loads(p, warp - 1);
    } else {
      ptx::increase_registers<consumer_registers(C)>();
      const typename G::ThreadCoord thread{group, ptx::warp_index() % 4, ptx::lane_index()};
      Consumer<G, N>(p, thread).run();
    }
  }
};

template <class Config>
OCTAVO_KERNEL(threads(Config::value), Config::value.min_ctas)
sm90_forward(const OCTAVO_GRID_CONSTANT ParamsOf<Config> p) {
  if constexpr (is_split_kv(Config::value))
    SplitKvKernel<Config>::run(p);
  else
    ForwardKernel<Config>::run(p);
}

}  // namespace octavo::sm90
