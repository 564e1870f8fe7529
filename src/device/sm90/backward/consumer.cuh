// SPDX-License-Identifier: Apache-2.0
// A consumer warpgroup of the backward kernel: 64 keys, whose dK and dV it keeps in registers.
//
// Scores are transposed, keys by queries, so that P^T and dS^T can be register operands of dV and
// dK without moving data. dQ sums over the keys of all warpgroups, so it reads dS from shared
// memory. With S^T = K Q^T, dP^T = V dO^T, dV += P^T dO, dK += dS^T Q and dQ = dS K:
//
//   warpgroup 0, products     dQ(i-1) dK(i) dV(i) S(i+1) dP(i+1)
//                other units                store dQ             P, dS, store dS(i+1)
//   warpgroup 1, products                                        dQ(i) dK(i) dV(i) S(i+1) dP(i+1)
//                other units  P, dS, store dS(i)                             store dQ
//
// The warpgroups take turns: one issues products while the other computes P and dS. A warp that
// issues a product waits until the tensor cores have room for it, so during its turn it can do
// little else. At the turn of warpgroup 0 there is no dS of warpgroup 1 yet, so warpgroup 0
// computes dQ one block late. dQ comes first in a turn, and is stored between the steps of dV.
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
  using Steps::store_dq;
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
  OCTAVO_DEVICE void start_scores(float (&s)[G::kScores], u32 of_block) const {
    const auto stage = q(of_block);
    ptx::mbarrier_wait(G::q_full(stage.stage()), stage.phase());
    ptx::discard(s);
    ptx::pin(s);
    ptx::wgmma_fence();
    keys_by_queries(s, G::k_tile(), G::q_tile(stage.stage()));
  }
  OCTAVO_DEVICE void start_dp(float (&dp)[G::kScores], u32 of_block) const {
    const auto stage = dout(of_block);
    ptx::mbarrier_wait(G::do_full(stage.stage()), stage.phase());
    ptx::discard(dp);
    ptx::pin(dp);
    ptx::spare("start_scores had one after dP of the block before was last read");
    ptx::wgmma_fence();
    keys_by_queries(dp, G::v_tile(), G::do_tile(stage.stage()));
  }
  OCTAVO_DEVICE void start_dk(Operand& ds) {
    ptx::pin(dk);
    pin(ds);
    ptx::spare("start_dq had one after dS was packed");
    ptx::wgmma_fence();
    add_queries(dk, ds, block, G::q_tile(q(block).stage()));
  }
  // Starts dQ of dq_block(). The first block of warpgroup 0 has no previous one: its product reads
  // K instead of dS, and the result is not used, as a branch around the product would cost
  // registers of the products in flight.
  OCTAVO_DEVICE void start_dq(float (&dq)[G::kDq]) const {
    ptx::pin(dq);
    ptx::wgmma_fence();
    dq_product(dq, has_dq() ? G::ds_tile(dq_block() % kDsBuffers) : G::k_tile());
  }

  // --- dQ and dS --------------------------------------------------------------------------------

  // Warpgroup 0 computes dQ of the block before the current one, as long as there is another
  // warpgroup.
  OCTAVO_DEVICE bool is_late() const { return warpgroups(C) == 2 && thread.group == 0; }
  OCTAVO_DEVICE u32 dq_block() const { return block - (is_late() ? 1 : 0); }
  OCTAVO_DEVICE bool has_dq() const { return !is_late() || block > 0; }

  OCTAVO_DEVICE void share_ds(const Operand& ds) const {
    const u32 buffer = block % kDsBuffers;
    ptx::mbarrier_wait(G::ds_empty(buffer), ~(block / kDsBuffers) & 1);
    store_ds(ds, block);
    ptx::fence_proxy_async();
    ptx::warp_sync();
    arrive(G::ds_full(buffer));
  }
  // Waits until all warpgroups have stored dS of dq_block().
  OCTAVO_DEVICE void wait_for_ds() const {
    if (has_dq())
      ptx::mbarrier_wait(G::ds_full(dq_block() % kDsBuffers), dq_block() / kDsBuffers & 1);
  }
  // Call when dQ is complete. Releases dS, and waits until the buffer of dQ may be replaced.
  OCTAVO_DEVICE void begin_dq_store() const {
    if (!has_dq()) return;
    arrive(G::ds_empty(dq_block() % kDsBuffers));
    ptx::mbarrier_wait(G::dq_empty(0, dq_buffer()), dq_block() / C.dq_buffers & 1);
  }
  OCTAVO_DEVICE u32 dq_buffer() const { return dq_block() % C.dq_buffers; }
  // Passes the stored dQ to the writer. Call at the end of a turn, as the fence takes long.
  OCTAVO_DEVICE void end_dq_store() const {
    if (!has_dq()) return;
    ptx::fence_proxy_async();
    ptx::warp_sync();
    arrive(G::dq_full(dq_buffer()));
  }

  // --- the schedule -----------------------------------------------------------------------------

  // Turns begin with warpgroup 0 and alternate. Each warpgroup has one more turn than blocks: S and
  // dP of its first block, and after its last block only the gradients.
  OCTAVO_DEVICE void wait_for_turn() const {
    if (warpgroups(C) == 1) return;
    ptx::spare("only the speed depends on it");
    ptx::named_barrier_sync(2 + static_cast<int>(thread.group), consumer_threads(C));
  }
  OCTAVO_DEVICE void end_turn() const {
    if (warpgroups(C) == 1) return;
    ptx::named_barrier_arrive(3 - static_cast<int>(thread.group), consumer_threads(C));
  }

  // Computes P and dS of the current block. dP is still running on entry.
  OCTAVO_DEVICE void find_operands(float (&s)[G::kScores], float (&dp)[G::kScores],
                                   Operand& probability, Operand& ds) const {
    const u32 slot = block_slot();
    const auto lse = Steps::template load_stats<G::kEarlyPairs>(G::lse_log2(q(block).stage()));
    find_p(s, lse, slot);
    const auto delta = Steps::template load_stats<G::kEarlyPairs>(G::delta(dout(block).stage()));
    ptx::wgmma_wait<0>();
    ptx::pin(dp);
    pack(probability, s);
    find_ds(s, dp, delta, slot);
    pack(ds, s);
    pin(probability);
  }
  // Starts dQ, dK and dV of the current block, and stores dQ between the steps of dV, which is
  // still running on return.
  OCTAVO_DEVICE void start_gradients(Operand& probability, Operand& ds) {
    float dq[G::kDq];
    start_dq(dq);
    start_dk(ds);
    ptx::wgmma_wait<1>();
    ptx::pin(dq);
    begin_dq_store();
    pin(probability);
    ptx::pin(dv);
    ptx::spare("start_dq had one after P was packed");
    ptx::wgmma_fence();
    const auto store_part = [&](u32 step) {
      if (has_dq()) store_dq(dq, 0, G::dq_tile(dq_buffer()), {step, G::kQuerySteps});
    };
    add_queries(dv, probability, block, G::do_tile(dout(block).stage()), store_part);
    ptx::wgmma_wait<1>();
    ptx::pin(dk);
    pin(ds);
    arrive(G::q_empty(q(block).stage()));
  }
  // Call when dV of the current block is complete.
  OCTAVO_DEVICE void finish_dv(Operand& probability) {
    ptx::pin(dv);
    pin(probability);
    arrive(G::do_empty(dout(block).stage()));
  }

  OCTAVO_DEVICE void visit_blocks(u32 blocks) {
    float s[G::kScores], dp[G::kScores];
    Operand probability, ds;
    if (thread.group == 1) wait_for_turn();
    start_scores(s, 0);
    start_dp(dp, 0);
    end_turn();
    ptx::wgmma_wait<1>();
    ptx::pin(s);
    while (true) {
      find_operands(s, dp, probability, ds);
      share_ds(ds);
      wait_for_ds();
      wait_for_turn();
      start_gradients(probability, ds);
      if (block + 1 == blocks) break;
      start_scores(s, block + 1);
      ptx::wgmma_wait<1>();
      finish_dv(probability);
      start_dp(dp, block + 1);
      end_turn();
      end_dq_store();
      ptx::wgmma_wait<1>();
      ptx::pin(s);
      ++block;
    }
    ptx::wgmma_wait<0>();
    finish_dv(probability);
    end_dq_store();
    ++block;
    if (thread.group == 0) end_turn();
    if (is_late()) find_last_dq();
  }
  OCTAVO_DEVICE void find_last_dq() const {
    float dq[G::kDq];
    wait_for_ds();
    start_dq(dq);
    ptx::wgmma_wait<0>();
    ptx::pin(dq);
    begin_dq_store();
    store_dq(dq, 0, G::dq_tile(dq_buffer()));
    end_dq_store();
  }

  OCTAVO_DEVICE void run(i32 blocks) {
    ptx::mbarrier_wait(G::k_full(), 0);
    ptx::mbarrier_wait(G::v_full(), 0);
    if (blocks > 0) {
      visit_blocks(static_cast<u32>(blocks));
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
