// SPDX-License-Identifier: Apache-2.0
// Backward attention on Hopper with wgmma and TMA. From dO, with S = scale Q K^T, P = exp(S - LSE)
// and delta = rowsum(dO * O):
//
//   dV = P^T dO     dP = dO V^T     dS = P (dP - delta)     dK = scale dS^T Q     dQ = scale dS K
//
// A work tile has block_n keys of one KV head. One CTA computes it, with 64 keys for each consumer
// warpgroup or 64 for two (divides_products); or a pair of CTAs, with 64 keys each. A CTA visits
// the blocks of queries that see any key of the tile (work.cuh). dK and dV stay in registers. dQ is
// a sum over tiles, in FP32, in a fixed order: results have the same bits in every run.
//
//   role        warps               registers            does
//   consumer    4 x warpgroups      consumer_registers   the five products, in a pair all but dQ
//                                                        (consumer.cuh, divided_consumer.cuh,
//                                                        pair_consumer.cuh)
//   producer    1 of a warpgroup    producer_registers   TMA loads, as stages become empty
//   dQ writer   dq_writers                               adds slices of dQ to global memory
//   dS sender   1, in a pair                             sends dS to the other CTA
//   dQ          4, in a pair        kDqGroupRegisters    the product for dQ
//
//   shared memory     what                                          bytes
//   k, v              cta_keys rows, in panels of columns           kv_tile each
//   q[], dout[]       block_m rows                                  q_stage each
//   ds[2]             dS of a block, a row for each query           ds_tile each
//   peer_k            in a pair K of the peer, half of the columns  kv_tile / 2
//   peer_ds[2]        in a pair dS of the peer                      ds_tile each
//   dq[]              FP32 dQ of a block or slice, as registers     dq_tile each
//   lse_log2[], delta[]  floats of the queries of a stage            row_stats_bytes each
//   blocks[]          which block of queries is in a stage of Q     4 each
//   slopes[]          with alibi, the slope of its head             4 each
//   work              the tile of the CTA                           kWorkBytes
//
// clang-format off
//   barrier         arrives                        waits               becomes true
//   k_full, v_full  producer, and the bytes        all consumers       K, V of the tile are there
//   q_full[s]       producer, and the bytes        all consumers       Q of a block and its LSE
//   q_empty[s]      4 warps of each warpgroup      producer            Q may be replaced
//   do_full[s], do_empty[s]                                            the same for dO and delta
//   dq_full[w]      warps that have a part of it   dQ writer w         dQ of a block, or a slice, is complete
//   dq_empty[h][b]  a dQ writer, once at the start consumers of half h dQ may be replaced, by half h
//   tail_full       producer, and the bytes        producer            a tile's last rows can be cleared
//   ds_full[b]      warps that have a part of it   all consumers       dS of a block is complete
//   ds_empty[b]     4 warps of each warpgroup      those warps         dS may be replaced
//   named 1         all consumers, also of dQ      all consumers       K and V may be overwritten, at the end
//   named 2         warpgroup 1                    warpgroup 0         its products may be issued
//   named 3         warpgroup 0                    warpgroup 1         the same
//   with divides_products:
//   p_full[b]       4 warps with dV                warps with dK       P of a block is in ds[b]; dS
//                                                                      will replace it
//   in a pair:
//   k_full                                         warps with dV, dQ   the same
//   v_full                                         warps with dK       the same
//   ds_full[b]      4 warps with dK                warps with dQ,      dS of this CTA's keys is complete
//                                                  dS sender
//   peer_k_full     producer, and the bytes        warps with dQ       peer_k is there
//   peer_ds_full[b] dS sender of the peer, bytes   warps with dQ       dS of the peer's keys is complete
//   ds_empty[b]     warps with dQ of both CTAs     warps with dV       dS and the peer's peer_ds may be replaced
//   cluster         all threads of both CTAs       all threads         the peer's barriers are initialised, at the
//                                                                      start; the CTA may exit, at the end
// clang-format on
#pragma once

#include "device/ptx/cluster.cuh"
#include "device/ptx/term.cuh"
#include "device/sm90/backward/consumer.cuh"
#include "device/sm90/backward/divided_consumer.cuh"
#include "device/sm90/backward/geometry.cuh"
#include "device/sm90/backward/pair_consumer.cuh"
#include "device/sm90/backward/producer.cuh"
#include "device/sm90/backward/work.cuh"

namespace octavo::sm90::backward {

template <class Config>
struct BackwardKernel {
  using G = Geometry<Config>;
  static constexpr Sm90BackwardConfig C = G::C;

  static OCTAVO_DEVICE void init_barriers() {
    ptx::mbarrier_init(G::k_full(), 1);
    ptx::mbarrier_init(G::v_full(), 1);
    ptx::mbarrier_init(G::tail_full(), 1);
    for (u32 writer = 0; writer < dq_writers(C); ++writer)
      ptx::mbarrier_init(G::dq_full(writer), G::kDqWarps);
    for (u32 buffer = 0; buffer < C.dq_buffers; ++buffer) {
      for (u32 half = 0; half < dq_halves(C); ++half)
        ptx::mbarrier_init(G::dq_empty(half, buffer), 1);
      // Only the half that takes a buffer first may pass its first wait.
      ptx::mbarrier_arrive(G::dq_empty(G::dq_half(buffer), buffer));
    }
    for (u32 stage = 0; stage < C.stages_q; ++stage) {
      ptx::mbarrier_init(G::q_full(stage), 1);
      ptx::mbarrier_init(G::q_empty(stage), G::kConsumerWarps);
    }
    for (u32 stage = 0; stage < C.stages_do; ++stage) {
      ptx::mbarrier_init(G::do_full(stage), 1);
      ptx::mbarrier_init(G::do_empty(stage), G::kConsumerWarps);
    }
    for (u32 buffer = 0; buffer < kDsBuffers; ++buffer) {
      ptx::mbarrier_init(G::ds_full(buffer), G::kDsWarps);
      ptx::mbarrier_init(G::ds_empty(buffer), G::kDsReaders);
      if (divides_products(C)) ptx::mbarrier_init(G::p_full(buffer), 4);
      if (is_pair(C)) ptx::mbarrier_init(G::peer_ds_full(buffer), 1);
    }
    if (is_pair(C)) ptx::mbarrier_init(G::peer_k_full(), 1);
    ptx::spare("fence.proxy.async of the same thread follows");
    ptx::fence_mbarrier_init();
  }

  // Zeroes the padding of dK and dV. This CTA clears the rows of the tensor that its tile would
  // have in a batch without padding.
  static OCTAVO_DEVICE void clear_keys(const Sm90BackwardParams& p, const Work<Config>& work) {
    if (p.cu_seqlens_q != nullptr) return;
    const i32 first = work.place() * C.block_n + work.cta_n() - work.n();
    const i32 rows = min_of(cta_keys(C), p.seqlen_kv - first);
    const auto clear = [&](void* to, const Strides& s) {
      clear_padding<threads(C)>(to, s, work.sequence * s.batch + work.head_kv * s.head, first, rows,
                                work.span.kv_begin, work.span.seqlen_kv, p.head_dim);
    };
    clear(p.dk, p.dk_strides);
    clear(p.dv, p.dv_strides);
  }

  static OCTAVO_DEVICE void run_consumer(const Sm90BackwardParams& p, u32 group, i32 blocks) {
    const u32 warp = ptx::warp_index() % 4;
    if constexpr (divides_products(C)) {
      using DividingConsumer = typename SelectDividing<Config>::Type;
      const ThreadCoord thread{0, warp, ptx::lane_index()};
      if (group == 0)
        DividingConsumer(p, thread).run_dv(blocks);
      else
        DividingConsumer(p, thread).run_dk(blocks);
    } else {
      Consumer<Config>(p, {group, warp, ptx::lane_index()}).run(blocks);
    }
  }

  // The producer and the other warps of its warpgroup. They read the work again, as they have few
  // registers to keep it.
  static OCTAVO_DEVICE void run_producers(const Sm90BackwardParams& p) {
    const Work<Config> work = Work<Config>::read(G::work_slot());
    const u32 warp = ptx::warp_index() % 4;
    if (warp == 0) {
      Producer<Config>{p, work, ptx::elect_one()}.run();
    } else if (warp <= dq_writers(C)) {
      DqWriter<Config>{p, work, warp - 1}.run();
    } else if (is_pair(C)) {
      DsSender<Config>{}.run(static_cast<u32>(work.m_count * p.heads_per_kv));
    }
  }

  // Waits for all threads of the CTA, or of the pair.
  static OCTAVO_DEVICE void sync() {
    if (is_pair(C)) {
      ptx::cluster_arrive();
      ptx::cluster_wait();
    } else {
      ptx::cta_sync();
    }
  }

  static OCTAVO_DEVICE void run(const Sm90BackwardParams& p) {
    if (ptx::thread_index() == 0) {
      ptx::prefetch_tensor_map(&p.q);
      ptx::prefetch_tensor_map(&p.k);
      ptx::prefetch_tensor_map(&p.v);
      ptx::prefetch_tensor_map(&p.dout);
      init_barriers();
    }
    // The grid may start before row_stats has ended.
    ptx::wait_for_earlier_grids();
    // sm90_finish_dq starts once every CTA has come here, and waits for their end.
    ptx::launch_dependent_grids();
    const u32 group = ptx::warp_index() / 4;
    if (ptx::warp_index() == 0) {
      const Work<Config> of_cta = Work<Config>::of_block(p, ptx::block_index_x() / ctas(C));
      if (ptx::lane_index() == 0) of_cta.publish(G::work_slot());
    }
    ptx::spare("TMA accesses only the barriers, which have a fence of their own");
    ptx::fence_proxy_async();
    sync();
    const Work<Config> work = Work<Config>::read(G::work_slot());
    if (C.modifiers.padded) clear_keys(p, work);
    if (!work.has_keys()) return;
    if (group == warpgroups(C)) {
      ptx::decrease_registers<producer_registers(C)>();
      run_producers(p);
    } else if (is_pair(C) && group > warpgroups(C)) {
      if constexpr (is_pair(C)) {
        ptx::decrease_registers<kDqGroupRegisters>();
        DqConsumer<Config>(p, {0, ptx::warp_index() % 4, ptx::lane_index()})
            .run(static_cast<u32>(work.m_count * p.heads_per_kv));
      }
    } else {
      ptx::increase_registers<consumer_registers(C)>();
      run_consumer(p, group, work.m_count * p.heads_per_kv);
    }
    if (is_pair(C)) {
      ptx::spare("lanes meet again behind a branch, although PTX does not promise it");
      ptx::warp_sync();
      // The peer may still send dS and arrive at barriers.
      sync();
    }
  }
};

template <class Config>
OCTAVO_KERNEL(threads(Config::value), min_ctas(Config::value))
sm90_backward(const OCTAVO_GRID_CONSTANT ParamsOf<Config> p) {
  BackwardKernel<Config>::run(p);
}

}  // namespace octavo::sm90::backward
