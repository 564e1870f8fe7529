// SPDX-License-Identifier: Apache-2.0
// A consumer warpgroup of the backward kernel: 64 keys, whose dK and dV it keeps in registers.
//
// Scores are transposed, keys by queries, so that P^T and dS^T can be register operands of dV and
// dK without moving data. dQ sums over the keys of all warpgroups, so it reads dS from shared
// memory.
//
//   tensor cores   S(i)   dP(i)           dV(i)                             dQ(i-1)   dK(i)
//   other units           P = exp2(S)     dS = P (dP - delta), store dS(i)  store dQ(i-1)
//
// where S^T = K Q^T, dP^T = V dO^T, dV += P^T dO, dQ = dS K and dK += dS^T Q.
//
// dQ runs one block late, so no warpgroup waits for another's dS. One warpgroup computes P and dS
// while the other uses the tensor cores; wait_for_turn() staggers their start. Without carries_dk
// (block_m = 128) each block waits for its own dK. With carries_dk (block_m = 64) dK overlaps S of
// the next block.
#pragma once

#include "device/sm90/backward/consumer_steps.cuh"

namespace octavo::sm90::backward {

template <class Config>
struct Consumer : ConsumerSteps<Config> {
  using Steps = ConsumerSteps<Config>;
  using typename Steps::Operand;
  using G = typename Steps::G;

  using Steps::add_queries;
  using Steps::arrive;
  using Steps::block;
  using Steps::block_slot;
  using Steps::by_keys;
  using Steps::C;
  using Steps::dout;
  using Steps::find_ds;
  using Steps::find_p;
  using Steps::fresh_group;
  using Steps::keys_by_queries;
  using Steps::kRowBytes;
  using Steps::p;
  using Steps::pack;
  using Steps::pin;
  using Steps::q;
  using Steps::store_ds;
  using Steps::store_gradient;
  using Steps::thread;

  float dk[G::kColumns], dv[G::kColumns];

  OCTAVO_DEVICE Consumer(const Sm90BackwardParams& params, const ThreadCoord& t)
      : Steps(params, t) {}

  // --- products ---------------------------------------------------------------------------------

  // The warpgroup's part of dQ = dS K of a block, or of its transpose.
  OCTAVO_DEVICE void dq_product(float (&dq)[G::kDq], u32 ds) const {
    const u32 group = fresh_group();
    OCTAVO_UNROLL
    for (u32 step = 0; step < C.block_n / 16; ++step) {
      const u32 keys = G::k_tile() + step * 16 * kRowBytes;
      const u32 scores = ds + step / 4 * C.block_m * G::kDs.row_bytes + step % 4 * 32;
      if constexpr (transposes_dq(C))
        Steps::template mma<true, false>(
            dq, Steps::template by_rows<C.block_n>(keys + group * C.block_n * kRowBytes),
            by_keys(scores), step > 0);
      else
        Steps::template mma<false, true>(dq, by_keys(scores + group * kRows * G::kDs.row_bytes),
                                         Steps::template by_rows<C.block_n>(keys), step > 0);
    }
    ptx::wgmma_commit();
  }

  // --- the schedule -----------------------------------------------------------------------------

  OCTAVO_DEVICE void start_scores(float (&s)[G::kScores]) const {
    ptx::pin(s);
    ptx::wgmma_fence();
    keys_by_queries(s, G::k_tile(), G::q_tile(q(block).stage()));
  }
  OCTAVO_DEVICE void start_dp(float (&dp)[G::kScores]) const {
    ptx::mbarrier_wait(G::do_full(dout(block).stage()), dout(block).phase());
    ptx::pin(dp);
    ptx::spare("start_scores had one after dP of the block before was last read");
    ptx::wgmma_fence();
    keys_by_queries(dp, G::v_tile(), G::do_tile(dout(block).stage()));
  }
  OCTAVO_DEVICE void start_dv(Operand& probability) {
    pin(probability);
    ptx::pin(dv);
    ptx::wgmma_fence();
    add_queries(dv, probability, block, G::do_tile(dout(block).stage()));
  }
  OCTAVO_DEVICE void start_dk(Operand& ds) {
    ptx::pin(dk);
    pin(ds);
    ptx::spare("start_dq had one after dS was packed");
    ptx::wgmma_fence();
    add_queries(dk, ds, block, G::q_tile(q(block).stage()));
  }
  // Starts dQ of the previous block, once all warpgroups have stored its dS. The first block has no
  // previous one: its product reads K instead of dS, and the result is not used. A branch around
  // the product would cost registers of the products that are still in flight.
  OCTAVO_DEVICE void start_dq(float (&dq)[G::kDq]) const {
    const u32 buffer = (block - 1) % kDsBuffers;
    if (block > 0) ptx::mbarrier_wait(G::ds_full(buffer), (block - 1) / kDsBuffers & 1);
    ptx::pin(dq);
    ptx::spare("start_dv had one after dQ of the block before was last read");
    ptx::wgmma_fence();
    dq_product(dq, block > 0 ? G::ds_tile(buffer) : G::k_tile());
  }
  OCTAVO_DEVICE void share_ds(const Operand& ds) const {
    const u32 buffer = block % kDsBuffers;
    ptx::mbarrier_wait(G::ds_empty(buffer), ~(block / kDsBuffers) & 1);
    store_ds(ds, block);
    ptx::fence_proxy_async();
    ptx::warp_sync();
    arrive(G::ds_full(buffer));
  }
  // Passes dQ of the previous block, whose product is complete, to the writer.
  OCTAVO_DEVICE void share_dq(float (&dq)[G::kDq]) const {
    ptx::pin(dq);
    if (block == 0) return;
    const u32 of_block = block - 1, buffer = of_block % C.dq_buffers;
    arrive(G::ds_empty(of_block % kDsBuffers));
    ptx::mbarrier_wait(G::dq_empty(0, buffer), of_block / C.dq_buffers & 1);
    Steps::store_dq(dq, 0, G::dq_tile(buffer));
    ptx::fence_proxy_async();
    ptx::warp_sync();
    arrive(G::dq_full(buffer));
  }

  // Computes one block of queries, and dQ of the previous block. With carries_dk, dK of the
  // previous block is still running on entry.
  OCTAVO_DEVICE void visit_block(Operand& ds) {
    float s[G::kScores], dp[G::kScores], dq[G::kDq];
    ptx::mbarrier_wait(G::q_full(q(block).stage()), q(block).phase());
    const u32 slot = block_slot();
    start_scores(s);
    start_dp(dp);
    const auto lse = Steps::template load_stats<G::kEarlyPairs>(G::lse_log2(q(block).stage()));
    ptx::wgmma_wait<1>();
    ptx::pin(s);
    if (carries_dk(C)) finish_dk(ds, block);
    wait_for_turn();
    find_p(s, lse, slot);
    end_turn();
    ptx::wgmma_wait<0>();
    ptx::pin(dp);
    Operand probability;
    pack(probability, s);
    start_dv(probability);
    const auto delta = Steps::template load_stats<G::kEarlyPairs>(G::delta(dout(block).stage()));
    find_ds(s, dp, delta, slot);
    pack(ds, s);
    share_ds(ds);
    start_dq(dq);
    start_dk(ds);
    ptx::wgmma_wait<1>();
    finish_dv(probability);
    share_dq(dq);
    if (!carries_dk(C)) {
      ptx::wgmma_wait<0>();
      finish_dk(ds, block + 1);
    }
    ++block;
  }
  // Warpgroup 1 begins P of its first block after warpgroup 0 has finished its own.
  OCTAVO_DEVICE void wait_for_turn() const {
    if (block > 0 || thread.group == 0 || warpgroups(C) == 1) return;
    ptx::spare("only the speed depends on it");
    ptx::named_barrier_sync(2, consumer_threads(C));
  }
  OCTAVO_DEVICE void end_turn() const {
    if (block > 0 || thread.group == 1 || warpgroups(C) == 1) return;
    ptx::named_barrier_arrive(2, consumer_threads(C));
  }
  OCTAVO_DEVICE void visit_blocks(i32 blocks) {
    Operand ds;
    while (block < static_cast<u32>(blocks)) visit_block(ds);
    float dq[G::kDq];
    start_dq(dq);
    ptx::wgmma_wait<0>();
    if (carries_dk(C)) finish_dk(ds, block);
    share_dq(dq);
  }
  // Call when dV of the current block is complete.
  OCTAVO_DEVICE void finish_dv(Operand& probability) {
    ptx::pin(dv);
    pin(probability);
    arrive(G::do_empty(dout(block).stage()));
  }
  // Call when dK of the block before `next`, if there is one, is complete.
  OCTAVO_DEVICE void finish_dk(Operand& ds, u32 next) {
    ptx::pin(dk);
    pin(ds);
    if (next > 0) arrive(G::q_empty(q(next - 1).stage()));
  }

  OCTAVO_DEVICE void run(i32 blocks) {
    ptx::mbarrier_wait(G::k_full(), 0);
    ptx::mbarrier_wait(G::v_full(), 0);
    if (blocks > 0) {
      visit_blocks(blocks);
    } else {
      OCTAVO_UNROLL
      for (int i = 0; i < G::kColumns; ++i) dk[i] = dv[i] = 0.0f;
    }
    // After this barrier every warpgroup has read K and V for the last time.
    ptx::named_barrier_sync(1, consumer_threads(C));
    store_gradient(dv, 1.0f, G::v_tile(), p.dv, p.dv_strides);
    store_gradient(dk, p.scale, G::k_tile(), p.dk, p.dk_strides);
  }
};

}  // namespace octavo::sm90::backward
