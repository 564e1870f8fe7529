// SPDX-License-Identifier: Apache-2.0
// K of more than 256 columns, in slices of 128 columns: how the producer loads them, and the main
// loop of a consumer warpgroup. Shared memory has no room for another block of K, so each slice has
// a full and an empty barrier of its own, and the next block arrives slice by slice, while the
// tensor cores read the rest of this one. The barriers of a stage are those of its last slice, and
// those of all other slices follow.
//
//   block j       tensor cores                   warpgroup
//                 S(j) = Q K(j)^T, by slices     waits for a slice; releases the one before
//                 O += P(j-1) V(j-1)             waits for V(j-1), which is loaded under Q K(j)^T;
//                                                then as qk_first in mainloop.cuh
#pragma once

#include "device/ptx/mbarrier.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/ptx/wgmma_f16.cuh"
#include "device/sm90/gemm.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/loads.cuh"

namespace octavo::sm90 {

template <class G, class N>
struct Mainloop;

template <class G>
struct KSlices {
  using KvState = typename G::KvState;
  static constexpr Sm90ForwardConfig C = G::C;
  static constexpr int kCount = k_slices(C);
  static constexpr int kPanels = G::kQkPanels.count / kCount;  // of a slice
  static constexpr u32 kBytes = G::S.k_stage / kCount;
  static_assert(kCount == 1 || (!is_8bit_qk(C) && C.schedule == Schedule::qk_first &&
                                !is_split_kv(C) && !has_block_mask(C)),
                "only 16-bit qk_first kernels without block masks load K in slices");

  static OCTAVO_DEVICE u32 number(const KvState& k, u32 slice) {
    return slice + 1 == kCount ? k.stage() : C.stages + k.stage() * (kCount - 1) + slice;
  }

  // The producer loads each slice once all warpgroups have released that of an earlier block.
  static OCTAVO_DEVICE void load(const Sm90ForwardParams& p, i32 token, i32 head, i32 batch,
                                 KvState& k, bool leader) {
    OCTAVO_UNROLL
    for (u32 slice = 0; slice < kCount; ++slice) {
      ptx::mbarrier_wait(G::k_empty(number(k, slice)), k.phase() ^ 1);
      ptx::warp_sync();  // all lanes have seen the phase before the load may complete the next one
      if (!leader) continue;
      const u32 bar = G::k_full(number(k, slice));
      ptx::mbarrier_arrive_expect_tx(bar, kBytes);
      load_rows(p.k, G::k_tile(k.stage()) + slice * kBytes, bar, C.block_n, token, head, batch,
                {G::kQkPanels.row_bytes, G::kQkPanels.columns, kPanels},
                static_cast<i32>(slice) * kSliceColumns);
    }
    k.advance();
  }

  // A consumer releases all slices but the last of a block that it does not need.
  template <class Blocks>
  static OCTAVO_DEVICE void skip(const Blocks& blocks) {
    OCTAVO_UNROLL
    for (u32 slice = 0; slice + 1 < kCount; ++slice) {
      ptx::spare("a later load was seen, so this slice has been issued");
      ptx::mbarrier_wait(G::k_full(number(blocks.k, slice)), blocks.k.phase());
      ptx::warp_sync();
      blocks.arrive(G::k_empty(number(blocks.k, slice)));
    }
  }

  // Starts Q K^T of one slice. pin() hides where the addresses came from: there are so many steps
  // that the compiler, which would compute all addresses before the main loop, would spill them.
  template <class Scores>
  static OCTAVO_DEVICE void qk(Scores& scores, u32 q, u32 stage, int slice) {
    u32 k = static_cast<u32>(k_major(G::k_tile(stage), G::kSwizzle));
    ptx::pin(q);
    ptx::pin(k);
    constexpr int kStepsInPanel = G::kRowBytes / kStepBytes;
    OCTAVO_UNROLL
    for (int i = 0; i < kPanels * kStepsInPanel; ++i) {
      const u32 panel = slice * kPanels + i / kStepsInPanel, bytes = i % kStepsInPanel * kStepBytes;
      const u64 a = descriptor(q + ((panel * kRows * G::kRowBytes + bytes) >> 4), G::kSwizzle);
      const u64 b = descriptor(k + ((panel * C.block_n * G::kRowBytes + bytes) >> 4), G::kSwizzle);
      const bool accumulate = slice > 0 || i > 0;
      if constexpr (C.element == Element::f16)
        ptx::wgmma_f16<false, false>(scores.s, a, b, accumulate);
      else
        ptx::wgmma_bf16<false, false>(scores.s, a, b, accumulate);
    }
  }
  // Starts Q K^T of a block, and releases each slice once the products with it are complete, while
  // those with the next slice run. Blocks::release_k() releases the last slice.
  template <class Scores, class Blocks>
  static OCTAVO_DEVICE void start_qk(Scores& scores, u32 q, const Blocks& blocks) {
    const KvState& k = blocks.k;
    ptx::pin(scores.s);
    OCTAVO_UNROLL
    for (int slice = 0; slice < kCount; ++slice) {
      ptx::mbarrier_wait(G::k_full(number(k, slice)), k.phase());
      ptx::wgmma_fence();
      qk(scores, q, k.stage(), slice);
      ptx::wgmma_commit();
      if (slice == 0) continue;
      ptx::wgmma_wait<1>();
      blocks.arrive(G::k_empty(number(k, slice - 1)));
    }
  }

  // Mainloop::qk_first by slices; V is waited for as late as possible.
  template <class N, class State, class Blocks>
  static OCTAVO_DEVICE void run(State& state, const Sm90ForwardParams& p, u32 q, u32 lane,
                                Blocks& blocks) {
    using Loop = Mainloop<G, N>;
    typename N::Scores scores;
    typename G::P prob;
    start_qk(scores, q, blocks);
    ptx::wgmma_wait<0>();
    Loop::finish_qk(scores, blocks.k, lane);
    blocks.release_k();
    Loop::mask(scores, p, blocks);
    N::update_max(scores, state.rows, p.scale_log2, true, [](const auto&) {});
    N::exp(scores, state.rows, p.scale_log2, 0, G::kScoreN8);
    Loop::pack_p(prob, scores, state.rows);
    bool accumulate = false;
    while (blocks.advance()) {
      const bool new_tile = blocks.is_new_tile();
      start_qk(scores, q, blocks);
      Loop::wait_for_v(blocks, blocks.v);
      N::start_pv(state, prob, blocks.v.stage(), accumulate);
      ptx::wgmma_wait<1>();
      Loop::finish_qk(scores, blocks.k, lane);
      blocks.release_k();
      Loop::mask(scores, p, blocks);
      const typename N::Rows previous_rows = state.rows;
      if (new_tile) blocks.begin_rows(state);
      typename Loop::Rescale rescale;
      N::update_max(scores, state.rows, p.scale_log2, new_tile, [&](const float(&alpha)[2]) {
        rescale = {true, {alpha[0], alpha[1]}};
      });
      N::exp(scores, state.rows, p.scale_log2, 0, G::kScoreN8);
      ptx::spare("V has been waited for; this ends a basic block, which keeps the exps before");
      Loop::wait_for_v(blocks, blocks.v);
      N::finish_pv(state, prob, blocks.v.stage(), previous_rows);
      blocks.release_v();
      if (new_tile)
        blocks.store_previous_tile(state, previous_rows);
      else if (rescale.needed)
        rescale_o(state, rescale.alpha);
      accumulate = !new_tile;
      Loop::pack_p(prob, scores, state.rows);
    }
    Loop::wait_for_v(blocks, blocks.v);
    N::start_pv(state, prob, blocks.v.stage(), accumulate);
    N::finish_pv(state, prob, blocks.v.stage(), state.rows);
    blocks.release_v();
  }
};

}  // namespace octavo::sm90
