// SPDX-License-Identifier: Apache-2.0
// Conformance kernels for TMA, wgmma and clusters. Shared memory holds an mbarrier at byte 0 and
// the tile from byte 1024.
#pragma once

#include "device/conformance/params.cuh"
#include "device/ptx/atomic.cuh"
#include "device/ptx/cluster.cuh"
#include "device/ptx/fence.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/tma.cuh"
#include "device/ptx/wgmma_f16.cuh"
#include "device/ptx/wgmma_f8.cuh"
#include "device/ptx/wgmma_s8.cuh"

namespace octavo::conformance {

inline constexpr u32 kTile = 1024;

OCTAVO_DEVICE void copy_to_shared(const Params& p, u32 words, u32 threads) {
  for (u32 i = ptx::thread_index(); i < words; i += threads)
    ptx::store_shared_b32(
        ptx::shared_base() + kTile + i * 4,
        static_cast<u32>(ptx::load_global_i32(reinterpret_cast<const i32*>(p.in) + i)));
}
OCTAVO_DEVICE void copy_to_global(const Params& p, u32 words, u32 threads, u32 first = 0) {
  for (u32 i = ptx::thread_index(); i < words; i += threads)
    ptx::store_global_f32(reinterpret_cast<float*>(p.out) + first + i,
                          ptx::load_shared_f32(ptx::shared_base() + kTile + i * 4));
}

// Loads a box of kRank dimensions into shared memory and writes its bytes to `out`.
template <int kRank>
OCTAVO_KERNEL(128, 1)
tma_load(const OCTAVO_GRID_CONSTANT Params p) {
  const u32 bar = ptx::shared_base();
  i32 at[kRank];
  for (int i = 0; i < kRank; ++i) at[i] = p.at[i];
  if (ptx::thread_index() == 0) {
    ptx::mbarrier_init(bar, 1);
    ptx::fence_mbarrier_init();
  }
  ptx::cta_sync();
  if (ptx::thread_index() == 0) {
    ptx::mbarrier_arrive_expect_tx(bar, p.bytes);
    ptx::tma_load(bar + kTile, &p.map, bar, at);
  }
  ptx::mbarrier_wait(bar, 0);
  copy_to_global(p, p.bytes / 4, 128);
}

enum class Store : int { plain, add };

// Copies words of `in` to shared memory, then stores them as a box into the tensor at `out`.
template <int kRank, Store kStore>
OCTAVO_KERNEL(128, 1)
tma_store(const OCTAVO_GRID_CONSTANT Params p) {
  i32 at[kRank];
  for (int i = 0; i < kRank; ++i) at[i] = p.at[i];
  copy_to_shared(p, p.bytes / 4, 128);
  ptx::fence_proxy_async();
  ptx::cta_sync();
  if (ptx::thread_index() == 0) {
    if constexpr (kStore == Store::plain)
      ptx::tma_store(&p.map, ptx::shared_base() + kTile, at);
    else
      ptx::tma_reduce_add(&p.map, ptx::shared_base() + kTile, at);
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
  }
}

// in: bytes/4 words, then as many again. Stores the first to `out` and adds the second to them,
// both by bulk copies.
template <int kThreads>
OCTAVO_KERNEL(kThreads, 1)
bulk_reduce(const OCTAVO_GRID_CONSTANT Params p) {
  copy_to_shared(p, p.bytes / 2, kThreads);
  ptx::fence_proxy_async();
  ptx::cta_sync();
  if (ptx::thread_index() == 0) {
    ptx::bulk_store(p.out, ptx::shared_base() + kTile, p.bytes);
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
    ptx::bulk_reduce_add_f32(p.out, ptx::shared_base() + kTile + p.bytes, p.bytes);
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
    ptx::bulk_wait<0>();
  }
}

// Two CTAs: CTA 0 copies bytes/4 words of `in` to `out` and sets the flag behind them, `count`
// times. CTA 1 waits for the flag and copies the words to behind it. The flag is a word of `out`,
// which is not 0 at first.
template <int kThreads>
OCTAVO_KERNEL(kThreads, 1)
flags(const OCTAVO_GRID_CONSTANT Params p) {
  const u32 words = p.bytes / 4, thread = ptx::thread_index();
  u32* const flag = p.out + words;
  if (ptx::block_index_x() == 0) {
    for (u32 i = thread; i < words; i += kThreads)
      ptx::store_global_b32(
          p.out + i,
          static_cast<u32>(ptx::load_global_i32(reinterpret_cast<const i32*>(p.in) + i)));
    ptx::cta_sync();
    if (thread == 0)
      for (i32 n = 0; n < p.count; ++n) ptx::red_release_add(flag, 3);
    return;
  }
  const u32 set = static_cast<u32>(p.at[0]) + static_cast<u32>(p.count) * 3;
  if (thread == 0)
    while (ptx::ld_acquire(flag) != set) {
    }
  ptx::cta_sync();
  for (u32 i = thread; i < words; i += kThreads)
    ptx::store_global_b32(
        flag + 1 + i,
        static_cast<u32>(ptx::load_coherent_i32(reinterpret_cast<const i32*>(p.out) + i)));
}

// A cluster of two: CTA 0 multicasts a box to both CTAs; each then sends the other a word with
// st.async and reads one of the other's words. out, per CTA: the tile, the word received, the word
// read.
template <int kThreads>
OCTAVO_KERNEL(kThreads, 1)
cluster(const OCTAVO_GRID_CONSTANT Params p) {
  const u32 bar = ptx::shared_base(), mail_bar = bar + 8, mail = bar + 16;
  const u32 rank = ptx::cluster_cta_rank(), peer = rank ^ 1;
  if (ptx::thread_index() == 0) {
    ptx::mbarrier_init(bar, 1);
    ptx::mbarrier_init(mail_bar, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(bar, p.bytes);
    ptx::mbarrier_arrive_expect_tx(mail_bar, 4);
  }
  ptx::cluster_arrive();
  ptx::cluster_wait();
  const i32 at[2] = {p.at[0], p.at[1]};
  if (ptx::thread_index() == 0) {
    if (rank == 0) ptx::tma_load_multicast(bar + kTile, &p.map, bar, at, u16{3});
    ptx::st_async_b32(ptx::map_to_cta(mail, peer), 1000 + rank, ptx::map_to_cta(mail_bar, peer));
  }
  ptx::mbarrier_wait_cluster(bar, 0);
  ptx::mbarrier_wait_cluster(mail_bar, 0);
  ptx::cluster_arrive();  // both tiles have arrived
  ptx::cluster_wait();
  const u32 words = p.bytes / 4, first = rank * (words + 2);
  copy_to_global(p, words, kThreads, first);
  if (ptx::thread_index() == 0) {
    ptx::store_global_f32(reinterpret_cast<float*>(p.out) + first + words,
                          ptx::load_shared_f32(mail));
    ptx::store_global_f32(reinterpret_cast<float*>(p.out) + first + words + 1,
                          ptx::load_remote_f32(ptx::map_to_cta(bar + kTile + 4 * rank + 4, peer)));
  }
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

enum class Wgmma : int {
  f16,
  f16_a,  // A in registers
  f16_trans_a,
  f16_trans_b,
  f16_trans_both,
  bf16,
  bf16_trans_a,
  bf16_trans_b,
  bf16_trans_both,
  e4m3,
  e4m3_a,
  e5m2,
  e4m3_e5m2,
  e4m3_in_f16,
  s8,
  u8_s8
};

template <Wgmma kWgmma, class D, int kSize>
OCTAVO_DEVICE void multiply(D (&d)[kSize], const u32 (&a)[4], u64 a_at, u64 b_at, bool accumulate) {
  if constexpr (kWgmma == Wgmma::f16) ptx::wgmma_f16<false, false>(d, a_at, b_at, accumulate);
  if constexpr (kWgmma == Wgmma::f16_a) ptx::wgmma_f16<false>(d, a, b_at, accumulate);
  if constexpr (kWgmma == Wgmma::f16_trans_a)
    ptx::wgmma_f16<true, false>(d, a_at, b_at, accumulate);
  if constexpr (kWgmma == Wgmma::f16_trans_b)
    ptx::wgmma_f16<false, true>(d, a_at, b_at, accumulate);
  if constexpr (kWgmma == Wgmma::f16_trans_both)
    ptx::wgmma_f16<true, true>(d, a_at, b_at, accumulate);
  if constexpr (kWgmma == Wgmma::bf16) ptx::wgmma_bf16<false, false>(d, a_at, b_at, accumulate);
  if constexpr (kWgmma == Wgmma::bf16_trans_a)
    ptx::wgmma_bf16<true, false>(d, a_at, b_at, accumulate);
  if constexpr (kWgmma == Wgmma::bf16_trans_b)
    ptx::wgmma_bf16<false, true>(d, a_at, b_at, accumulate);
  if constexpr (kWgmma == Wgmma::bf16_trans_both)
    ptx::wgmma_bf16<true, true>(d, a_at, b_at, accumulate);
  if constexpr (kWgmma == Wgmma::e4m3 || kWgmma == Wgmma::e4m3_in_f16)
    ptx::wgmma_e4m3(d, a_at, b_at, accumulate);
  if constexpr (kWgmma == Wgmma::e4m3_a) ptx::wgmma_e4m3(d, a, b_at, accumulate);
  if constexpr (kWgmma == Wgmma::e5m2) ptx::wgmma_e5m2(d, a_at, b_at, accumulate);
  if constexpr (kWgmma == Wgmma::e4m3_e5m2) ptx::wgmma_e4m3_e5m2(d, a_at, b_at, accumulate);
  if constexpr (kWgmma == Wgmma::s8) ptx::wgmma_s8(d, a_at, b_at, accumulate);
  if constexpr (kWgmma == Wgmma::u8_s8) ptx::wgmma_u8_s8(d, a_at, b_at, accumulate);
}

template <Wgmma kWgmma>
struct AccumulatorOf {
  using Type = float;
};
template <>
struct AccumulatorOf<Wgmma::e4m3_in_f16> {
  using Type = u32;
};
template <>
struct AccumulatorOf<Wgmma::s8> {
  using Type = i32;
};
template <>
struct AccumulatorOf<Wgmma::u8_s8> {
  using Type = i32;
};

OCTAVO_DEVICE void store_word(u32* to, float x) {
  ptx::store_global_f32(reinterpret_cast<float*>(to), x);
}
OCTAVO_DEVICE void store_word(u32* to, u32 x) { ptx::store_global_b32(to, x); }
OCTAVO_DEVICE void store_word(u32* to, i32 x) { ptx::store_global_b32(to, static_cast<u32>(x)); }

// in: bytes/4 words of shared memory, then four registers of A per thread. Runs a chain of `count`
// products, the first without an accumulator; each product starts at[0] bytes of A and at[1] bytes
// of B after the previous one. out: the accumulator registers of each thread.
template <Wgmma kWgmma, int kRegisters>
OCTAVO_KERNEL(128, 1)
wgmma(const OCTAVO_GRID_CONSTANT Params p) {
  using D = typename AccumulatorOf<kWgmma>::Type;
  const u32 thread = ptx::thread_index();
  copy_to_shared(p, p.bytes / 4, 128);
  u32 a[4];
  for (u32 i = 0; i < 4; ++i)
    a[i] = static_cast<u32>(
        ptx::load_global_i32(reinterpret_cast<const i32*>(p.in) + p.bytes / 4 + thread * 4 + i));
  ptx::fence_proxy_async();
  ptx::cta_sync();
  D d[kRegisters] = {};
  const u64 base = (ptx::shared_base() + kTile) >> 4;
  ptx::pin(d);
  ptx::pin(a);
  ptx::wgmma_fence();
  for (i32 n = 0; n < p.count; ++n)
    multiply<kWgmma>(d, a, p.descriptors[0] + base + static_cast<u64>(n * p.at[0] / 16),
                     p.descriptors[1] + base + static_cast<u64>(n * p.at[1] / 16), n > 0);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin(d);
  ptx::pin(a);
  OCTAVO_UNROLL
  for (u32 i = 0; i < kRegisters; ++i) store_word(p.out + thread * kRegisters + i, d[i]);
}

}  // namespace octavo::conformance
