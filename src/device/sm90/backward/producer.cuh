// SPDX-License-Identifier: Apache-2.0
// The producer warp and the dQ writer warps of the backward kernel.
#pragma once

#include "device/core/score_modifiers.cuh"
#include "device/ptx/atomic.cuh"
#include "device/ptx/cluster.cuh"
#include "device/ptx/fence.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/tma.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/sm90/backward/geometry.cuh"
#include "device/sm90/backward/work.cuh"
#include "device/sm90/loads.cuh"
#include "device/sm90/pipeline_state.cuh"

namespace octavo::sm90::backward {

template <class Config>
struct Producer {
  using G = Geometry<Config>;
  static constexpr Sm90BackwardConfig C = G::C;

  const Sm90BackwardParams& p;
  const Work<Config>& work;
  bool leader;
  PipelineState<C.stages_q> q{};
  PipelineState<C.stages_do> dout{};
  u32 tail_phase = 0;

  // One lane loads, and its load may complete the barrier's next phase, so all lanes must have seen
  // the current phase first.
  static OCTAVO_DEVICE void wait_as_warp(u32 bar, u32 parity) {
    ptx::mbarrier_wait(bar, parity);
    ptx::warp_sync();
  }

  // Loads kPanels panels of `rows` rows, from `column` on, and arrives at `full`. Only the first
  // `exist` rows, which may be negative, belong to the sequence. In a varlen batch the others
  // belong to the next sequence, in a padded batch to the padding. These are zeroed: they are
  // multiplied by 0, and 0 times their contents might be NaN.
  template <int kPanels = G::kHead.count>
  OCTAVO_DEVICE void load(const ptx::TensorMap& map, u32 to, u32 full, i32 rows, i32 exist,
                          i32 token, i32 head, const float* stats, u32 stats_to, i32 column = 0) {
    const bool cuts_sequence = (C.modifiers.padded || p.cu_seqlens_q != nullptr) && exist < rows;
    const u32 bar = cuts_sequence ? G::tail_full() : full;
    const u32 bytes = static_cast<u32>(rows) * kPanels * G::kHead.row_bytes;
    if (leader) {
      ptx::mbarrier_arrive_expect_tx(bar, bytes + (stats == nullptr ? 0 : rows * 4));
      load_rows(map, to, bar, rows, token, head, work.batch(p),
                {G::kHead.row_bytes, G::kHead.columns, kPanels}, column);
      if (stats != nullptr) ptx::bulk_load(stats_to, stats, static_cast<u32>(rows) * 4, bar);
    }
    if (!cuts_sequence) return;
    wait_as_warp(bar, tail_phase);
    tail_phase ^= 1;
    const u32 from = static_cast<u32>(max_of(exist, 0)) * G::kHead.row_bytes;
    const u32 panel_bytes = static_cast<u32>(rows) * G::kHead.row_bytes;
    for (u32 panel = 0; panel < kPanels; ++panel)
      fill_shared<32>(to + panel * panel_bytes + from, panel_bytes - from, ptx::lane_index(), 0);
    ptx::fence_proxy_async();
    ptx::warp_sync();
    if (leader) ptx::mbarrier_arrive(full);
  }

  // Loads a block of queries, and stores its number and whether it needs a mask.
  OCTAVO_DEVICE void load_block(i32 head, i32 m) {
    const i32 row = m * C.block_m, token = work.span.q_begin + row;
    const i32 exist = work.span.seqlen_q - row;
    const i64 stats =
        (static_cast<i64>(work.sequence) * p.heads_kv * p.heads_per_kv + head) * p.stats_rows + row;
    wait_as_warp(G::q_empty(q.stage()), q.phase() ^ 1);
    if (leader)
      ptx::store_shared_b32(G::block_slot(q.stage()),
                            static_cast<u32>(m * 2 + (work.needs_mask(p, m) ? 1 : 0)));
    if (C.modifiers.alibi) {
      const ScoreModifierParams& scores = modifiers(p).scores;
      const float slope = scores.alibi_slopes == nullptr
                              ? 0.0f
                              : alibi_slope_log2<true>(scores, work.sequence, head);
      if (leader) ptx::store_shared_b32(G::slope_slot(q.stage()), __builtin_bit_cast(u32, slope));
    }
    load(p.q, G::q_tile(q.stage()), G::q_full(q.stage()), C.block_m, exist, token, head,
         p.lse_log2 + stats, G::lse_log2(q.stage()));
    q.advance();
    wait_as_warp(G::do_empty(dout.stage()), dout.phase() ^ 1);
    load(p.dout, G::do_tile(dout.stage()), G::do_full(dout.stage()), C.block_m, exist, token, head,
         p.delta + stats, G::delta(dout.stage()));
    dout.advance();
  }

  // Loads K or V of a CTA of the tile.
  template <int kPanels>
  OCTAVO_DEVICE void load_keys(const ptx::TensorMap& map, u32 to, u32 full, u32 rank, i32 column) {
    const i32 n = work.n_of(rank);
    load<kPanels>(map, to, full, cta_keys(C), work.span.seqlen_kv - n, work.span.kv_begin + n,
                  work.head_kv, nullptr, 0, column);
  }

  OCTAVO_DEVICE void run() {
    load_keys<G::kHead.count>(p.k, G::k_tile(), G::k_full(), G::rank(), 0);
    load_keys<G::kHead.count>(p.v, G::v_tile(), G::v_full(), G::rank(), 0);
    if constexpr (is_pair(C))
      load_keys<G::kHead.count / 2>(p.k, G::peer_k_tile(), G::peer_k_full(), G::rank() ^ 1,
                                    static_cast<i32>(G::rank()) * C.head_dim / 2);
    for (i32 head = 0; head < p.heads_per_kv; ++head)
      for (i32 i = 0; i < work.m_count; ++i)
        load_block(work.head_kv * p.heads_per_kv + head, work.m_block(i));
  }
};

// Sends dS of each block to the other CTA of a pair. Its buffer there is empty: P of a block is
// stored only when both CTAs have computed dQ from what the buffers held before.
template <class Config>
struct DsSender {
  using G = Geometry<Config>;

  OCTAVO_DEVICE void run(u32 blocks) const {
    if (!ptx::elect_one()) return;
    for (u32 block = 0; block < blocks; ++block) {
      const u32 buffer = block % kDsBuffers, full = G::of_peer(G::peer_ds_full(buffer));
      ptx::mbarrier_wait(G::ds_full(buffer), block / kDsBuffers & 1);
      ptx::mbarrier_arrive_expect_tx_remote(full, G::S.ds_tile);
      ptx::bulk_send(G::of_peer(G::peer_ds_tile(buffer)), G::ds_tile(buffer), G::S.ds_tile, full);
    }
  }
};

// Adds slices of dQ to their tiles in global memory in the fixed order of work.cuh. The CTA whose
// turn is 0 stores instead of adding. The slices take the buffers and the writers in turn, block by
// block.
template <class Config>
struct DqWriter {
  using G = Geometry<Config>;
  static constexpr Sm90BackwardConfig C = G::C;
  // If a block has more slices than there are buffers, consumers wait for writers. A writer then
  // asks whether it is its next slice's turn while the last sum arrives. In other kernels, to ask
  // before the slice is there takes longer than it saves.
  static constexpr bool kAsksEarly = cta_dq_slices(C) > C.dq_buffers;

  const Sm90BackwardParams& p;
  const Work<Config>& work;
  u32 writer;
  u32* arriving = nullptr;  // the counter of the slice whose sum may not have arrived yet

  // Waits until the last sum has arrived in global memory, not only until it was read from shared
  // memory, and lets the next CTA add. Otherwise its sum could arrive first.
  OCTAVO_DEVICE void end_turn() {
    if (arriving == nullptr) return;
    ptx::bulk_wait<0>();
    ptx::spare("the end of a bulk copy implies such a fence");
    ptx::fence_proxy_async_all();
    ptx::red_release_add(arriving, 1);
    arriving = nullptr;
  }

  // Adds a slice. `count` is the number of slices of this CTA before it.
  OCTAVO_DEVICE void add(i64 slice, u32 turn, u32 count) {
    float* const to = p.dq_sum + slice * (G::S.dq_tile / 4);
    u32* const turns = p.dq_turn + slice;
    const u32 buffer = count % C.dq_buffers;
    bool is_its_turn = turn == 0;
    if (kAsksEarly) {
      if (!is_its_turn) is_its_turn = ptx::ld_acquire(turns) == turn;
      end_turn();
    }
    ptx::mbarrier_wait(G::dq_full(writer), count / dq_writers(C) & 1);
    if (turn == 0) {
      ptx::bulk_store(to, G::dq_tile(buffer), G::S.dq_tile);
    } else {
      while (!is_its_turn) is_its_turn = ptx::ld_acquire(turns) == turn;
      ptx::spare("only bulk copies wrote the tile, and the end of one implies such a fence");
      ptx::fence_proxy_async_all();
      ptx::bulk_reduce_add_f32(to, G::dq_tile(buffer), G::S.dq_tile);
    }
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
    ptx::mbarrier_arrive(G::dq_empty(G::dq_half(count + C.dq_buffers), buffer));
    arriving = turns;
    if (!kAsksEarly) end_turn();
  }

  OCTAVO_DEVICE void run() {
    if (!ptx::elect_one()) return;
    const i32 first = first_dq_tile<C.block_m>(p, work.span, work.sequence);
    const i32 first_slice = static_cast<i32>(G::rank()) * cta_dq_slices(C);
    const i32 first_head = (work.dq_sum(p) * p.heads_kv + work.head_kv) * p.heads_per_kv;
    u32 count = 0;
    for (i32 head = 0; head < p.heads_per_kv; ++head) {
      const i64 tile = static_cast<i64>(first_head + head) * p.dq_tiles + first;
      for (i32 i = 0; i < work.m_count; ++i) {
        OCTAVO_ROLLED
        for (i32 slice = 0; slice < cta_dq_slices(C); ++slice, ++count) {
          if (count % dq_writers(C) != writer) continue;
          const i32 m = work.m_block(i);
          add((tile + m) * dq_slices(C) + first_slice + slice, work.turn(p, m), count);
        }
      }
    }
    end_turn();
  }
};

}  // namespace octavo::sm90::backward
