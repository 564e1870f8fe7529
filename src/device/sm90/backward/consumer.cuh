// A consumer warpgroup of the backward kernel: 64 keys, whose dK and dV it keeps in registers.
//
// Scores are transposed, keys by queries, so that P^T and dS^T are register operands of dV and dK
// as they come. dQ sums over the keys of all warpgroups, so it reads dS from shared memory.
//
//   tensor cores   S(i)             dK(i-1)  dQ(i-1)     dP(i)          dV(i)
//   other units    store dS(i-1)    P = exp2(S)          store dQ(i-1)  dS = P (dP - delta)
//
// where S^T = K Q^T, dP^T = V dO^T, dV += P^T dO, dQ = dS K and dK += dS^T Q.
//
// dK and dQ of a block run under the exponentials of the next one. Without carries_dk (block_m =
// 128) registers are too short for that: dK runs before S then, while dS is stored.
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

  float dk[G::kColumns], dv[G::kColumns];

  OCTAVO_DEVICE Consumer(const Sm90BackwardParams& params, const ThreadCoord& t)
      : Steps(params, t) {}

  // --- products ---------------------------------------------------------------------------------

  // The warpgroup's part of dQ = dS K of a block, or of its transpose.
  OCTAVO_DEVICE void dq_product(float (&dq)[G::kDq], u32 of_block) const {
    const u32 group = fresh_group();
    OCTAVO_UNROLL
    for (u32 step = 0; step < C.block_n / 16; ++step) {
      const u32 keys = G::k_tile() + step * 16 * kRowBytes;
      const u32 scores = G::ds_tile(of_block % kDsBuffers) +
                         step / 4 * C.block_m * G::kDs.row_bytes + step % 4 * 32;
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
    ptx::mbarrier_wait(G::q_full(q(block).stage()), q(block).phase());
    ptx::pin(s);
    if (!carries_dk(C)) ptx::spare("start_dk has one after dS was packed");
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
  // dK of the block before the current one.
  OCTAVO_DEVICE void start_dk(Operand& ds) {
    ptx::pin(dk);
    pin(ds);
    if (carries_dk(C)) ptx::spare("start_scores has one after dS was packed");
    ptx::wgmma_fence();
    add_queries(dk, ds, block - 1, G::q_tile(q(block - 1).stage()));
  }
  // dQ of the block before the current one, once all warpgroups have shared its dS.
  OCTAVO_DEVICE void start_dq(float (&dq)[G::kDq]) const {
    ptx::pin(dq);
    ptx::spare("start_dv had one after dQ of the block before was last read");
    ptx::wgmma_fence();
    dq_product(dq, block - 1);
  }
  // Until all consumers have done so: dS of the block before the current one is complete.
  OCTAVO_DEVICE void share_ds(const Operand& ds) const {
    store_ds(ds, block - 1);
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(1, consumer_threads(C));
  }
  // dQ of the block before the current one, of which the product is complete.
  OCTAVO_DEVICE void share_dq(float (&dq)[G::kDq]) const {
    ptx::pin(dq);
    const u32 of_block = block - 1, buffer = of_block % C.dq_buffers;
    ptx::mbarrier_wait(G::dq_empty(buffer), ~(of_block / C.dq_buffers) & 1);
    Steps::template store_dq<0, G::kDq>(dq, G::dq_tile(buffer));
    ptx::fence_proxy_async();
    ptx::warp_sync();
    arrive(G::dq_full(buffer));
  }

  // Starts S of the current block, and dK and dQ of the block before, of which dS is in registers.
  OCTAVO_DEVICE void start_products(float (&s)[G::kScores], float (&dq)[G::kDq], Operand& ds) {
    if (carries_dk(C)) {
      start_scores(s);
      start_dk(ds);
      share_ds(ds);
    } else {
      start_dk(ds);
      share_ds(ds);
      ptx::wgmma_wait<0>();
      finish_dk(ds);
      start_scores(s);
    }
    start_dq(dq);
  }
  // One block of queries, and dK and dQ of the block before it, of which dS is in registers.
  template <bool kFirst>
  OCTAVO_DEVICE void visit_block(Operand& ds) {
    float s[G::kScores], dp[G::kScores], dq[G::kDq];
    if constexpr (kFirst)
      start_scores(s);
    else
      start_products(s, dq, ds);
    const u32 slot = block_slot();
    const auto lse = Steps::template load_stats<G::kEarlyPairs>(G::lse_log2(q(block).stage()));
    ptx::wgmma_wait<kFirst ? 0 : carries_dk(C) ? 2 : 1>();
    ptx::pin(s);
    find_p(s, lse, slot);
    if constexpr (!kFirst) {
      ptx::wgmma_wait<0>();
      if (carries_dk(C)) finish_dk(ds);
      share_dq(dq);
    }
    start_dp(dp);
    Operand probability;
    pack(probability, s);
    start_dv(probability);
    const auto delta = Steps::template load_stats<G::kEarlyPairs>(G::delta(dout(block).stage()));
    ptx::wgmma_wait<1>();
    ptx::pin(dp);
    find_ds(s, dp, delta, slot);
    ptx::wgmma_wait<0>();
    finish_dv(probability);
    pack(ds, s);
    ++block;
  }
  OCTAVO_DEVICE void visit_blocks(i32 blocks) {
    Operand ds;
    visit_block<true>(ds);
    while (block < static_cast<u32>(blocks)) visit_block<false>(ds);
    float dq[G::kDq];
    start_dk(ds);
    share_ds(ds);
    start_dq(dq);
    ptx::wgmma_wait<0>();
    finish_dk(ds);
    share_dq(dq);
  }
  // dV of the current block is complete.
  OCTAVO_DEVICE void finish_dv(Operand& probability) {
    ptx::pin(dv);
    pin(probability);
    arrive(G::do_empty(dout(block).stage()));
  }
  // dK of the block before the current one is complete.
  OCTAVO_DEVICE void finish_dk(Operand& ds) {
    ptx::pin(dk);
    pin(ds);
    arrive(G::q_empty(q(block - 1).stage()));
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
    // Every warpgroup has read K and V for the last time.
    ptx::named_barrier_sync(1, consumer_threads(C));
    store_gradient(dv, 1.0f, G::v_tile(), p.dv, p.dv_strides);
    store_gradient(dk, p.scale, G::k_tile(), p.dk, p.dk_strides);
  }
};

}  // namespace octavo::sm90::backward
