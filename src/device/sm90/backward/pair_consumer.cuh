// SPDX-License-Identifier: Apache-2.0
// The three warpgroups of a CTA of a pair (is_pair). The first two divide the products of the CTA's
// 64 keys as in divided_consumer.cuh, except dQ. The third one computes dQ of half of the columns
// from dS of both CTAs, so that the other products wait for the peer and for the dQ buffer only two
// blocks later.
//
//   warpgroup   scores, transposed          sum              dQ = dS K, keys by keys
//   0, dV       S = K Q^T, P = exp2(S)      dV += P^T dO
//   1, dK       dP = V dO^T, dS             dK += dS^T Q
//   3, dQ                                                    128 columns, 64 at a time, of all keys
//
// Warpgroup 2 has the producer. The dS sender copies dS of a block to the peer as soon as it is
// complete. S and dP of a block are started behind dV and dK of the block before:
//
//   tensor cores      dV(i) S(i+1)  of dV     dK(i) dP(i+1)  of dK     dQ(i)
//   warpgroup of dV                 P(i+1)
//   warpgroup of dK   dS(i)                             dS(i+1)
//   warpgroup of dQ                                                    store dQ(i)
#pragma once

#include "device/ptx/cluster.cuh"
#include "device/sm90/backward/divided_consumer.cuh"

namespace octavo::sm90::backward {

template <class Config>
struct PairConsumer : DividedConsumer<Config> {
  using Divided = DividedConsumer<Config>;
  using Steps = ConsumerSteps<Config>;
  using typename Steps::Operand;
  using G = typename Steps::G;
  using Divided::ds_buffer;
  using Divided::ds_phase;
  using Divided::finish_dk;
  using Divided::finish_dv;
  using Divided::load_p;
  using Divided::share_ds;
  using Divided::share_p;
  using Divided::start_dp;
  using Divided::start_dv;
  using Divided::start_scores;
  using Divided::start_sum;
  using Divided::store_sum;
  using Steps::block;
  using Steps::block_slot;
  using Steps::C;
  using Steps::dout;
  using Steps::find_ds;
  using Steps::find_p;
  using Steps::hide_unseen;
  using Steps::load_ds;
  using Steps::p;
  using Steps::pack;
  using Steps::q;
  using Steps::unpack_pair;

  static constexpr int kEarlyPairs = 4;

  OCTAVO_DEVICE PairConsumer(const Sm90BackwardParams& params, const ThreadCoord& t)
      : Divided(params, t) {}

  // Computes P and dV of one block of queries. dV of the previous block is still running on entry.
  OCTAVO_DEVICE void visit_for_dv(Operand& probability) {
    float s[G::kScores];
    start_scores(s);
    ptx::wgmma_wait<1>();
    if (block > 0) finish_dv(probability, block - 1);
    const auto lse = Steps::template load_stats<kEarlyPairs>(G::lse_log2(q(block).stage()));
    const u32 slot = block_slot();
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    find_p(s, lse, slot);
    pack(probability, s);
    share_p(probability);
    start_dv(probability);
    ++block;
  }
  OCTAVO_DEVICE void run_dv(i32 blocks) {
    Operand probability;
    ptx::mbarrier_wait(G::k_full(), 0);
    while (block < static_cast<u32>(blocks)) visit_for_dv(probability);
    ptx::wgmma_wait<0>();
    if (block > 0) finish_dv(probability, block - 1);
    store_sum(blocks, 1.0f, G::v_tile(), p.dv, p.dv_strides);
  }

  // dS = P (dP - delta) in the registers of dP. There are none for P in 32 bits beside them.
  template <class Stats>
  OCTAVO_DEVICE void multiply_dp(float (&dp)[G::kScores], const Stats& delta) const {
    ptx::mbarrier_wait(G::p_full(ds_buffer(block)), ds_phase(block));
    Operand probability;
    load_ds(probability, block);
    OCTAVO_UNROLL
    for (int i = 0; i < C.block_m / 8; ++i) {
      float row[2];
      delta.load(i, row);
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const int pair = i * 2 + r;
        float p0, p1;
        unpack_pair(p0, p1, probability.a[pair / 4][pair % 4]);
        dp[pair * 2] = p0 * (dp[pair * 2] - row[0]);
        dp[pair * 2 + 1] = p1 * (dp[pair * 2 + 1] - row[1]);
      }
    }
  }
  template <class Stats>
  OCTAVO_DEVICE void pack_ds(Operand& ds, float (&dp)[G::kScores], const Stats& delta, u32 slot) {
    if (C.modifiers.softcap) {
      float s[G::kScores];
      load_p(s);
      find_ds(s, dp, delta, slot);
      pack(ds, s);
    } else {
      multiply_dp(dp, delta);
      if (slot % 2 != 0) hide_unseen(dp, static_cast<i32>(slot / 2));
      pack(ds, dp);
    }
  }
  // Computes dS and dK of one block of queries. dK of the previous block is still running on entry.
  OCTAVO_DEVICE void visit_for_dk(Operand& ds) {
    float dp[G::kScores];
    start_dp(dp);
    ptx::wgmma_wait<1>();
    finish_dk(ds);
    ptx::spare("P follows from Q, and the number of the block was stored before dO was loaded");
    ptx::mbarrier_wait(G::q_full(q(block).stage()), q(block).phase());
    const auto delta = Steps::template load_stats<kEarlyPairs>(G::delta(dout(block).stage()));
    const u32 slot = block_slot();
    ptx::wgmma_wait<0>();
    ptx::pin(dp);
    pack_ds(ds, dp, delta, slot);
    share_ds(ds);
    start_sum(ds, G::q_tile(q(block).stage()));
    ++block;
  }
  OCTAVO_DEVICE void run_dk(i32 blocks) {
    Operand ds;
    ptx::mbarrier_wait(G::v_full(), 0);
    while (block < static_cast<u32>(blocks)) visit_for_dk(ds);
    ptx::wgmma_wait<0>();
    finish_dk(ds);
    store_sum(blocks, p.scale, G::k_tile(), p.dk, p.dk_strides);
  }
};

// The warpgroup of dQ.
template <class Config>
struct DqConsumer : ConsumerSteps<Config> {
  using Steps = ConsumerSteps<Config>;
  using G = typename Steps::G;
  using Steps::arrive;
  using Steps::block;
  using Steps::by_keys;
  using Steps::C;
  using Steps::kRowBytes;
  using Steps::thread;

  OCTAVO_DEVICE DqConsumer(const Sm90BackwardParams& params, const ThreadCoord& t)
      : Steps(params, t) {}

  // dQ of 64 columns from the 64 keys of a CTA; `ds` and `keys`: its dS, and those columns of its
  // K.
  OCTAVO_DEVICE void add_keys(float (&dq)[G::kDq], u32 ds, u32 keys, bool accumulate) const {
    OCTAVO_UNROLL
    for (u32 step = 0; step < kRows / 16; ++step)
      Steps::template mma<false, true>(dq, by_keys(ds + step * 32),
                                       Steps::template by_rows<kRows>(keys + step * 16 * kRowBytes),
                                       accumulate || step > 0);
  }
  // Computes a slice of dQ of the block, whose dS is there.
  OCTAVO_DEVICE void find_dq(float (&dq)[G::kDq], u32 buffer, u32 slice) const {
    constexpr u32 kPanelBytes = kRows * kRowBytes;
    ptx::pin(dq);
    ptx::wgmma_fence();
    const u32 of_all = G::rank() * cta_dq_slices(C) + slice;
    add_keys(dq, G::ds_tile(buffer), G::k_tile() + of_all * kPanelBytes, false);
    add_keys(dq, G::peer_ds_tile(buffer), G::peer_k_tile() + slice * kPanelBytes, true);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(dq);
  }
  OCTAVO_DEVICE void share_slice(const float (&dq)[G::kDq], u32 slice) const {
    const u32 count = block * cta_dq_slices(C) + slice, buffer = count % C.dq_buffers;
    ptx::mbarrier_wait(G::dq_empty(0, buffer), count / C.dq_buffers & 1);
    Steps::store_dq(dq, 0, G::dq_tile(buffer));
    ptx::fence_proxy_async();
    ptx::warp_sync();
    arrive(G::dq_full(count % dq_writers(C)));
  }
  // dS of the block, here and in the peer, may be replaced.
  OCTAVO_DEVICE void release_ds(u32 buffer) const {
    arrive(G::ds_empty(buffer));
    if (thread.lane == 0) ptx::mbarrier_arrive_remote(G::of_peer(G::ds_empty(buffer)));
  }
  OCTAVO_DEVICE void run(u32 blocks) {
    ptx::spare("dS follows from P, and P from K");
    ptx::mbarrier_wait(G::k_full(), 0);
    ptx::mbarrier_wait(G::peer_k_full(), 0);
    for (; block < blocks; ++block) {
      const u32 buffer = block % kDsBuffers, phase = block / kDsBuffers & 1;
      ptx::mbarrier_wait(G::ds_full(buffer), phase);
      ptx::mbarrier_wait_cluster(G::peer_ds_full(buffer), phase);
      OCTAVO_ROLLED
      for (u32 slice = 0; slice < cta_dq_slices(C); ++slice) {
        float dq[G::kDq];
        find_dq(dq, buffer, slice);
        if (slice + 1 == cta_dq_slices(C)) release_ds(buffer);
        share_slice(dq, slice);
      }
    }
    // The other warpgroups may overwrite K.
    ptx::named_barrier_sync(1, G::kProductThreads);
  }
};

// The two warpgroups that divide the products of a tile: of a pair's CTA, or of a CTA by itself.
template <class Config, bool kIsPair = is_pair(Config::value)>
struct SelectDividing {
  using Type = PairConsumer<Config>;
};
template <class Config>
struct SelectDividing<Config, false> {
  using Type = DividedConsumer<Config>;
};

}  // namespace octavo::sm90::backward
