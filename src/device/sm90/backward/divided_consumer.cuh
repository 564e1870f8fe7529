// SPDX-License-Identifier: Apache-2.0
// Two consumer warpgroups that share a tile of 64 keys and divide its products (divides_products).
// With 192 columns the registers of a warpgroup hold dK or dV of 64 keys, but not both. With 128
// columns, for problems with few keys, a single warpgroup would leave the tensor cores idle while
// it computes P and dS. Each product has 64 rows, so no operand is read twice.
//
//   warpgroup   scores, transposed          sum              columns of dQ = dS K
//   0, dV       S = K Q^T, P = exp2(S)      dV += P^T dO     the upper half
//   1, dK       dP = V dO^T, dS             dK += dS^T Q     the lower half
//
// Warpgroup 0 passes P to warpgroup 1 in 16 bits through shared memory. There dS = P (dP - delta)
// replaces P: each thread writes the words that it has read. Warpgroup 0 computes its half of dQ
// one block late, so that no warpgroup waits for dS. While one warpgroup computes P or dS, the
// tensor cores work for the other:
//
//   tensor cores      dV(i) dQ(i-1)  S(i+1)  of dV           dQ(i) dK(i)  dP(i+1)  of dK
//   warpgroup of dV   store dQ(i-1)          P(i+1)
//   warpgroup of dK   dS(i)                  store dQ(i)     dS(i+1)
#pragma once

#include "device/sm90/backward/consumer_steps.cuh"

namespace octavo::sm90::backward {

template <class Config>
struct DividedConsumer : ConsumerSteps<Config> {
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
  using Steps::keys_by_queries;
  using Steps::kRowBytes;
  using Steps::p;
  using Steps::pack;
  using Steps::pin;
  using Steps::q;
  using Steps::store_ds;
  using Steps::store_gradient;

  // The two halves of dQ's columns, and a thread's registers of one. With 192 columns the lower
  // half has two of three slices.
  static constexpr int kLower = 0, kUpper = 1;
  template <int kHalf>
  static constexpr int kDqOf = dq_slices_of(C, kHalf) * G::kDq;
  // Pairs of a block's row statistics that are loaded before the wait for a product.
  static constexpr int kEarlyPairs = 8;

  float sum[G::kColumns];  // dV or dK
  u32 dq_phases = 0;       // a bit for each dQ buffer: the phase of its next use by this warpgroup

  OCTAVO_DEVICE DividedConsumer(const Sm90BackwardParams& params, const ThreadCoord& t)
      : Steps(params, t) {}

  // --- both warpgroups --------------------------------------------------------------------------

  static OCTAVO_DEVICE u32 ds_buffer(u32 of_block) { return of_block % kDsBuffers; }
  static OCTAVO_DEVICE u32 ds_phase(u32 of_block) { return of_block / kDsBuffers & 1; }

  OCTAVO_DEVICE void start_sum(Operand& scores, u32 queries) {
    pin(scores);
    ptx::pin(sum);
    ptx::wgmma_fence();
    add_queries(sum, scores, block, queries);
  }
  // Starts dQ = dS K of a block, for one half of the columns.
  template <int kHalf>
  OCTAVO_DEVICE void start_dq(float (&dq)[kDqOf<kHalf>], u32 of_block) const {
    ptx::mbarrier_wait(G::ds_full(ds_buffer(of_block)), ds_phase(of_block));
    ptx::pin(dq);
    ptx::wgmma_fence();
    const u32 scores = G::ds_tile(ds_buffer(of_block)),
              keys = G::k_tile() + first_dq_slice(C, kHalf) * cta_keys(C) * kRowBytes;
    OCTAVO_UNROLL
    for (u32 step = 0; step < cta_keys(C) / 16; ++step)
      Steps::template mma<false, true>(
          dq, by_keys(scores + step * 32),
          Steps::template by_rows<cta_keys(C)>(keys + step * 16 * kRowBytes), step > 0);
    ptx::wgmma_commit();
  }
  // Passes a half of dQ, whose product is complete, to the writers.
  template <int kHalf>
  OCTAVO_DEVICE void share_dq(float (&dq)[kDqOf<kHalf>], u32 of_block) {
    ptx::pin(dq);
    arrive(G::ds_empty(ds_buffer(of_block)));
    OCTAVO_UNROLL
    for (u32 slice = 0; slice < dq_slices_of(C, kHalf); ++slice)
      share_slice<kHalf>(dq, slice, of_block);
  }
  // Slices of both halves take the buffers in turn, but each half has barriers of its own. A shared
  // barrier could be two phases behind the one that this warpgroup waits for, and a wait, which has
  // only the parity of a phase, would end at once.
  template <int kHalf>
  OCTAVO_DEVICE void share_slice(const float (&dq)[kDqOf<kHalf>], u32 slice, u32 of_block) {
    const u32 buffer = (of_block * dq_slices(C) + first_dq_slice(C, kHalf) + slice) % C.dq_buffers;
    ptx::mbarrier_wait(G::dq_empty(kHalf, buffer), dq_phases >> buffer & 1);
    dq_phases ^= 1u << buffer;
    Steps::store_dq(dq, slice, G::dq_tile(buffer));
    ptx::fence_proxy_async();
    ptx::warp_sync();
    arrive(G::dq_full(buffer));
  }
  // Call when the last product is complete.
  OCTAVO_DEVICE void store_sum(i32 blocks, float factor, u32 tile, void* to,
                               const Strides& strides) {
    if (blocks == 0) {
      OCTAVO_UNROLL
      for (int i = 0; i < G::kColumns; ++i) sum[i] = 0.0f;
    }
    // After this barrier all warpgroups have read K and V for the last time.
    ptx::named_barrier_sync(1, G::kProductThreads);
    store_gradient(sum, factor, tile, to, strides);
  }

  // --- P and dV ---------------------------------------------------------------------------------

  OCTAVO_DEVICE void start_scores(float (&s)[G::kScores]) const {
    ptx::mbarrier_wait(G::q_full(q(block).stage()), q(block).phase());
    ptx::pin(s);
    ptx::wgmma_fence();
    keys_by_queries(s, G::k_tile(), G::q_tile(q(block).stage()));
  }
  OCTAVO_DEVICE void share_p(const Operand& probability) const {
    const u32 empty = G::ds_empty(ds_buffer(block)), phase = ds_phase(block) ^ 1;
    if (is_pair(C))
      ptx::mbarrier_wait_cluster(empty, phase);
    else
      ptx::mbarrier_wait(empty, phase);
    store_ds(probability, block);
    ptx::warp_sync();
    arrive(G::p_full(ds_buffer(block)));
    arrive(G::q_empty(q(block).stage()));
  }
  OCTAVO_DEVICE void start_dv(Operand& probability) {
    ptx::mbarrier_wait(G::do_full(dout(block).stage()), dout(block).phase());
    start_sum(probability, G::do_tile(dout(block).stage()));
  }
  // Call when dV of block `of_block` is complete.
  OCTAVO_DEVICE void finish_dv(Operand& probability, u32 of_block) {
    ptx::pin(sum);
    pin(probability);
    arrive(G::do_empty(dout(of_block).stage()));
  }
  // Computes P and dV of one block of queries, and half of dQ of the block before.
  OCTAVO_DEVICE void visit_for_dv() {
    Operand probability;
    float s[G::kScores], dq[kDqOf<kUpper>];
    start_scores(s);
    const auto lse = Steps::template load_stats<kEarlyPairs>(G::lse_log2(q(block).stage()));
    const u32 slot = block_slot();
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    find_p(s, lse, slot);
    pack(probability, s);
    share_p(probability);
    start_dv(probability);
    if (block > 0) {
      start_dq<kUpper>(dq, block - 1);
      ptx::wgmma_wait<1>();
      finish_dv(probability, block);
      ptx::wgmma_wait<0>();
      share_dq<kUpper>(dq, block - 1);
    } else {
      ptx::wgmma_wait<0>();
      finish_dv(probability, block);
    }
    ++block;
  }
  OCTAVO_DEVICE void run_dv(i32 blocks) {
    ptx::mbarrier_wait(G::k_full(), 0);
    while (block < static_cast<u32>(blocks)) visit_for_dv();
    if (blocks > 0) {
      float dq[kDqOf<kUpper>];
      start_dq<kUpper>(dq, block - 1);
      ptx::wgmma_wait<0>();
      share_dq<kUpper>(dq, block - 1);
    }
    store_sum(blocks, 1.0f, G::v_tile(), p.dv, p.dv_strides);
  }

  // --- dS and dK --------------------------------------------------------------------------------

  OCTAVO_DEVICE void start_dp(float (&dp)[G::kScores]) const {
    ptx::mbarrier_wait(G::do_full(dout(block).stage()), dout(block).phase());
    ptx::pin(dp);
    ptx::wgmma_fence();
    keys_by_queries(dp, G::v_tile(), G::do_tile(dout(block).stage()));
  }
  OCTAVO_DEVICE void load_p(float (&s)[G::kScores]) const {
    ptx::mbarrier_wait(G::p_full(ds_buffer(block)), ds_phase(block));
    Operand probability;
    Steps::load_ds(probability, block);
    Steps::unpack(s, probability);
  }
  OCTAVO_DEVICE void share_ds(const Operand& ds) const {
    store_ds(ds, block);
    ptx::fence_proxy_async();
    ptx::warp_sync();
    arrive(G::ds_full(ds_buffer(block)));
    arrive(G::do_empty(dout(block).stage()));
  }
  // Call when dK of block `block - 1` is complete.
  OCTAVO_DEVICE void finish_dk(Operand& ds) {
    ptx::pin(sum);
    pin(ds);
    if (block > 0) arrive(G::q_empty(q(block - 1).stage()));
  }
  // Computes dS, dK and half of dQ of one block of queries. dK of the previous block is still
  // running on entry.
  OCTAVO_DEVICE void visit_for_dk(Operand& ds) {
    float s[G::kScores], dp[G::kScores], dq[kDqOf<kLower>];
    start_dp(dp);
    ptx::wgmma_wait<1>();
    finish_dk(ds);
    ptx::spare("P follows from Q, and the number of the block was stored before dO was loaded");
    ptx::mbarrier_wait(G::q_full(q(block).stage()), q(block).phase());
    const auto delta = Steps::template load_stats<kEarlyPairs>(G::delta(dout(block).stage()));
    const u32 slot = block_slot();
    ptx::wgmma_wait<0>();
    ptx::pin(dp);
    load_p(s);
    find_ds(s, dp, delta, slot);
    pack(ds, s);
    share_ds(ds);
    start_dq<kLower>(dq, block);
    start_sum(ds, G::q_tile(q(block).stage()));
    ptx::wgmma_wait<1>();
    share_dq<kLower>(dq, block);
    ++block;
  }
  OCTAVO_DEVICE void run_dk(i32 blocks) {
    Operand ds;
    ptx::mbarrier_wait(G::v_full(), 0);
    ptx::spare("dS follows from P, and P from K");
    ptx::mbarrier_wait(G::k_full(), 0);
    while (block < static_cast<u32>(blocks)) visit_for_dk(ds);
    ptx::wgmma_wait<0>();
    finish_dk(ds);
    store_sum(blocks, p.scale, G::k_tile(), p.dk, p.dk_strides);
  }
};

}  // namespace octavo::sm90::backward
