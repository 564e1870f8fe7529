// SPDX-License-Identifier: Apache-2.0
// The main loop of one consumer warpgroup over blocks of keys, once for each schedule. The
// persistent and the split-KV kernel run these loops, with any numerics.
//
//   qk_first    tensor cores                    warpgroup
//   block j     S(j) = Q K(j)^T, then           waits for S(j); mask, maximum, exp; waits for the
//               O += P(j-1) V(j-1)              product; rescales O, packs P(j)
//
//   pv_first    tensor cores                    warpgroup
//   block j     O += P(j-1) V(j-1), then        waits for the product, then for S(j);
//               S(j) = Q K(j)^T                 mask, maximum; rescales O; exp; packs P(j)
//
//   in_turn     Q K^T, softmax and P V of a block one after the other: for a block or two
//
// With qk_first a warpgroup's own P V runs under its softmax. With pv_first only the products of
// other warpgroups do, which leaves registers for larger blocks. No barrier here orders the
// warpgroups (there is no ping-pong scheduling).
//
// `Blocks` (Consumer in forward.cuh, KvShare in split_kv.cuh) says which block is next, and
// releases stages:
//   k, v                        the stages of the next K and V to release. After advance() k is the
//                               current block's, and v still the previous one's until release_v()
//   advance()                   moves to the next block; false: the loop has to end
//   is_new_tile()               the current block is the first of another tile
//   key(), rows()               the current block's first key, and the RowTile
//   hides_keys()                whether some row does not see all keys of the block
//   modify(scores)              applies the modifiers
//   clear_v_tail(v)             zeroes the rows of a loaded V that are no keys
//   release_k(), release_v()    lets the stage be filled again, and moves k or v to the next one
//   begin_rows(state), store_previous_tile(state, rows), store_previous_and_begin_rows(state)
//                               where a new tile begins: qk_first calls begin_rows before the new
//                               tile's softmax, and then store_previous_tile with the old tile's
//                               rows; pv_first calls the third once P V is complete
#pragma once

#include "device/ptx/mbarrier.cuh"
#include "device/sm90/gemm.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/k_slices.cuh"

namespace octavo::sm90 {

template <class G, class N>
struct Mainloop {
  using State = typename N::State;
  using Rows = typename N::Rows;
  using Scores = typename N::Scores;
  using P = typename G::P;
  using KvState = typename G::KvState;
  static constexpr Sm90ForwardConfig C = G::C;
  static constexpr bool kQueued = C.schedule == Schedule::pv_first_queued;

  // --- steps ------------------------------------------------------------------------------------

  static OCTAVO_DEVICE void start_qk(Scores& scores, u32 q, const KvState& k) {
    N::start_accumulator_bias(scores);
    N::template finish_accumulator_bias<0>(scores);
    issue_qk(scores, q, k, /*already_full=*/false);
  }
  // `already_full`: polling the barrier has shown that K is loaded, so there is no need to wait.
  static OCTAVO_DEVICE void issue_qk(Scores& scores, u32 q, const KvState& k, bool already_full) {
    if (!already_full) ptx::mbarrier_wait(G::k_full(k.stage()), k.phase());
    ptx::pin(N::accumulator(scores));
    ptx::wgmma_fence();
    N::qk(scores, q, k.stage());
    ptx::wgmma_commit();
  }
  static OCTAVO_DEVICE void finish_qk(Scores& scores, const KvState& k, u32 lane) {
    ptx::pin(N::accumulator(scores));
    N::finish_qk(scores, k.stage(), lane);
  }
  // Few blocks need a mask. 8-bit numerics test sign and mask in one branch (kMergesSignAndMask).
  template <class Blocks>
  static OCTAVO_DEVICE void mask(Scores& scores, const Sm90ForwardParams& p, Blocks& blocks) {
    const bool hides = blocks.hides_keys();
    if (N::kMergesSignAndMask && !hides && !p.negate) return;
    if (p.negate) N::negate(scores);
    blocks.modify(scores);
    if (has_block_mask(C) || (!N::kMergesSignAndMask && !hides)) return;  // modify() hides listed
    N::apply_mask(scores, p, blocks.rows(), blocks.key());
  }
  // Waits for V after the softmax. The wait also ends a basic block, which keeps the compiler from
  // moving the wait for the product up, before the exps that are meant to hide it.
  template <class Blocks>
  static OCTAVO_DEVICE void wait_for_v(const Blocks& blocks, const KvState& v,
                                       bool already_full = false) {
    if (!already_full) ptx::mbarrier_wait(G::v_full(v.stage()), v.phase());
    blocks.clear_v_tail(v);
  }
  static OCTAVO_DEVICE void pack_p(P& p, const Scores& scores, Rows& rows) {
    OCTAVO_UNROLL
    for (int step = 0; step < G::kPvSteps; ++step) N::pack_step(p, scores, step);
    N::sum_p(p, rows, 0, G::kPvSteps);
  }
  // Completes P V and issues the next block's Q K^T. With kQueued Q K^T is issued first and only
  // P V is waited for; otherwise P V is complete before Q K^T is issued.
  static OCTAVO_DEVICE void pv_then_qk(State& state, P& p, const KvState& v, Scores& scores, u32 q,
                                       const KvState& k, bool accumulate) {
    // Polling a barrier takes some thirty cycles. 8-bit kernels, whose products are short, poll
    // before other work and use the answer after it.
    const bool k_is_full = N::kPollsBarriers && ptx::mbarrier_test(G::k_full(k.stage()), k.phase());
    if (kQueued) N::start_accumulator_bias(scores);
    N::start_pv(state, p, v.stage(), accumulate);
    N::template finish_pv_then<kQueued>(state, p, v.stage(), state.rows, [&] {
      if (!kQueued) N::start_accumulator_bias(scores);
      N::template finish_accumulator_bias<kQueued ? 1 : 0>(scores);
      issue_qk(scores, q, k, k_is_full);
    });
  }

  // --- schedules --------------------------------------------------------------------------------

  // What update_max asks for: if `needed`, O must be multiplied by alpha, a factor for each row.
  struct Rescale {
    bool needed = false;
    float alpha[2] = {1, 1};
  };

  // Q has arrived, and there is at least one block.
  template <class Blocks>
  static OCTAVO_DEVICE void qk_first(State& state, const Sm90ForwardParams& p, u32 q, u32 lane,
                                     Blocks& blocks) {
    Scores scores;
    P prob;
    start_qk(scores, q, blocks.k);
    ptx::wgmma_wait<0>();
    finish_qk(scores, blocks.k, lane);
    blocks.release_k();
    mask(scores, p, blocks);
    N::update_max(scores, state.rows, p.scale_log2, true, [](const auto&) {});
    N::exp(scores, state.rows, p.scale_log2, 0, G::kScoreN8);
    wait_for_v(blocks, blocks.v);
    pack_p(prob, scores, state.rows);
    bool accumulate = false;
    while (blocks.advance()) {
      const bool new_tile = blocks.is_new_tile();
      start_qk(scores, q, blocks.k);
      N::start_pv(state, prob, blocks.v.stage(), accumulate);
      ptx::wgmma_wait<1>();
      finish_qk(scores, blocks.k, lane);
      blocks.release_k();
      mask(scores, p, blocks);
      const Rows previous_rows = state.rows;  // the block before's: 8-bit promotion reads them
      if (new_tile) blocks.begin_rows(state);
      // wgmma waits are collective over the warpgroup, and update_max calls back inside a branch
      // that only some warps take. So alpha is only recorded here and applied after the wait.
      Rescale rescale;
      N::update_max(scores, state.rows, p.scale_log2, new_tile, [&](const float(&alpha)[2]) {
        rescale = {true, {alpha[0], alpha[1]}};
      });
      N::exp(scores, state.rows, p.scale_log2, 0, G::kScoreN8);
      // Wait for the next V here, under the product, unless V may need the stage that this P V
      // still reads: with one stage, or in a new tile, which skipped blocks may precede.
      const bool waits_for_next_v = C.stages > 1 && !new_tile;
      if (waits_for_next_v) wait_for_v(blocks, blocks.v.next());
      N::finish_pv(state, prob, blocks.v.stage(), previous_rows);
      blocks.release_v();
      if (new_tile)
        blocks.store_previous_tile(state, previous_rows);
      else if (rescale.needed)
        rescale_o(state, rescale.alpha);
      if (!waits_for_next_v) wait_for_v(blocks, blocks.v);
      accumulate = !new_tile;
      pack_p(prob, scores, state.rows);
    }
    N::start_pv(state, prob, blocks.v.stage(), accumulate);
    N::finish_pv(state, prob, blocks.v.stage(), state.rows);
    blocks.release_v();
  }

  template <class Blocks>
  static OCTAVO_DEVICE void pv_first(State& state, const Sm90ForwardParams& p, u32 q, u32 lane,
                                     Blocks& blocks) {
    Scores scores;
    P prob;
    const auto make_p = [&](bool first) {
      finish_qk(scores, blocks.k, lane);
      blocks.release_k();
      mask(scores, p, blocks);
      N::update_max(scores, state.rows, p.scale_log2, first, [&](const float(&alpha)[2]) {
        if (!first) rescale_o(state, alpha);
      });
      N::exp(scores, state.rows, p.scale_log2, 0, G::kScoreN8);
      pack_p(prob, scores, state.rows);
    };
    start_qk(scores, q, blocks.k);
    ptx::wgmma_wait<0>();
    make_p(true);
    wait_for_v(blocks, blocks.v);
    bool accumulate = false;
    while (blocks.advance()) {
      const bool new_tile = blocks.is_new_tile();
      pv_then_qk(state, prob, blocks.v, scores, q, blocks.k, accumulate);
      blocks.release_v();
      if (new_tile) blocks.store_previous_and_begin_rows(state);
      const bool v_is_full =
          N::kPollsBarriers && ptx::mbarrier_test(G::v_full(blocks.v.stage()), blocks.v.phase());
      ptx::wgmma_wait<0>();
      make_p(new_tile);
      accumulate = !new_tile;
      wait_for_v(blocks, blocks.v, v_is_full);
    }
    N::start_pv(state, prob, blocks.v.stage(), accumulate);
    N::finish_pv(state, prob, blocks.v.stage(), state.rows);
    blocks.release_v();
  }
  // P V begins with a block's first keys, while the exps of the others are computed.
  template <class Blocks>
  static OCTAVO_DEVICE void in_turn(State& state, const Sm90ForwardParams& p, u32 q, u32 lane,
                                    Blocks& blocks) {
    Scores scores;
    bool first = true;
    do {
      start_qk(scores, q, blocks.k);
      ptx::wgmma_wait<0>();
      finish_qk(scores, blocks.k, lane);
      blocks.release_k();
      mask(scores, p, blocks);
      N::update_max(scores, state.rows, p.scale_log2, first, [&](const float(&alpha)[2]) {
        if (!first) rescale_o(state, alpha);
      });
      wait_for_v(blocks, blocks.v);
      N::interleave_pv(state, blocks.v.stage(), !first, [&](P& prob, int from, int to) {
        constexpr int kN8 = G::kStepKeys / 8;
        N::exp(scores, state.rows, p.scale_log2, from * kN8, to * kN8);
        OCTAVO_UNROLL
        for (int step = from; step < to; ++step) {
          N::pack_step(prob, scores, step);
          ptx::pin(prob.a[step]);
        }
        N::sum_p(prob, state.rows, from, to);
      });
      blocks.release_v();
      first = false;
    } while (blocks.advance());
  }

  template <class Blocks>
  static OCTAVO_DEVICE void run(State& state, const Sm90ForwardParams& p, u32 q, u32 lane,
                                Blocks& blocks) {
    if constexpr (k_slices(C) > 1)
      KSlices<G>::template run<N>(state, p, q, lane, blocks);
    else if constexpr (C.schedule == Schedule::qk_first)
      qk_first(state, p, q, lane, blocks);
    else if constexpr (C.schedule == Schedule::in_turn)
      in_turn(state, p, q, lane, blocks);
    else
      pv_first(state, p, q, lane, blocks);
  }
};

}  // namespace octavo::sm90
