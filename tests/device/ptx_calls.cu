// SPDX-License-Identifier: Apache-2.0
// Calls every Hopper wrapper of device/ptx: an inline function without a call is never assembled.
// ptx_test.cc compiles this file; it is not run.
#include "device/ptx/atomic.cuh"
#include "device/ptx/cluster.cuh"
#include "device/ptx/fence.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/stmatrix.cuh"
#include "device/ptx/tma.cuh"
#include "device/ptx/vector_memory.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/ptx/wgmma_f16.cuh"
#include "device/ptx/wgmma_f8.cuh"
#include "device/ptx/wgmma_s8.cuh"

using namespace octavo;
using namespace octavo::ptx;

template <int kDimensions>
__device__ void tma(const TensorMap* map, u32 at_shared, u32 bar) {
  i32 at[kDimensions] = {};
  tma_prefetch(map, at);
  tma_load(at_shared, map, bar, at);
  tma_load(at_shared, map, bar, at, l2_evict_first());
  tma_load(at_shared, map, bar, at, l2_evict_last());
  tma_load_multicast(at_shared, map, bar, at, u16{3});
  tma_store(map, at_shared, at);
  tma_reduce_add(map, at_shared, at);
}

// `tile` is not a constant: NVRTC 13.0 crashes on stmatrix to a constant address.
extern "C" __global__ void synchronisation(const __grid_constant__ TensorMap map, u8* out,
                                           u32 tile) {
  constexpr u32 kBar = 1024;
  mbarrier_init(kBar, 1);
  fence_mbarrier_init();
  fence_proxy_async();
  fence_proxy_async_all();
  cluster_arrive_relaxed();
  cluster_wait();
  wait_for_earlier_grids();
  launch_dependent_grids();
  if (elect_one()) {
    prefetch_tensor_map(&map);
    mbarrier_expect_tx(kBar, 16);
    mbarrier_arrive_expect_tx(kBar, 16);
    mbarrier_arrive(kBar);
    mbarrier_arrive_after_cp_async(kBar);
    tma<1>(&map, tile, kBar);
    tma<2>(&map, tile, kBar);
    tma<3>(&map, tile, kBar);
    tma<4>(&map, tile, kBar);
    tma<5>(&map, tile, kBar);
    bulk_load(tile, out, 16, kBar);
    bulk_store(out, tile, 16);
    bulk_reduce_add_f32(out, tile, 16);
    bulk_commit();
    bulk_wait<1>();
    bulk_wait_read<0>();
  }
  warp_sync();
  mbarrier_wait(kBar, 0);
  mbarrier_wait_cluster(kBar, 1);
  const u32 peer = map_to_cta(kBar, cluster_cta_rank() ^ 1);
  mbarrier_arrive_remote(peer);
  mbarrier_arrive_expect_tx_remote(peer, 32);
  u32 x[4] = {1, 2, 3, cluster_cta_count()};
  stmatrix_x4(tile, x);
  stmatrix_x4_trans(tile, x);
  u32 pair[2] = {x[0], x[1]};
  stmatrix_x2(tile, pair);
  const u32 there = map_to_cta(tile, 1);
  bulk_send(there, tile, 16, peer);
  st_async_b32(there, x[0], peer);
  st_async_b64(there, pair, peer);
  st_async_b128(there, x, peer);
  load_remote_b128(there, x);
  out[x[0] % 2] = static_cast<u8>(load_remote_f32(there));
  named_barrier_arrive(1, 64);
  cluster_arrive();
  cluster_wait();
  mbarrier_invalidate(kBar);
}

extern "C" __global__ void global_memory(u32* flag, const u32* in, u8* out) {
  while (ld_acquire(flag) < 2) {
  }
  u32 x[4];
  load_coherent_b128(in, x);
  load_coherent_b64(in, x[0], x[1]);
  x[2] += load_coherent_b32(in);
  x[3] += load_coherent_b16(in) + load_coherent_b8(in);
  x[0] += static_cast<u32>(load_coherent_i32(reinterpret_cast<const i32*>(in)));
  store_global_b128(out, x);
  red_release_add(flag, 1);
}

extern "C" __global__ void __launch_bounds__(256, 1) registers(u8* out) {
  if (out[0] != 0)
    increase_registers<160>();
  else
    decrease_registers<24>();
  out[1] = 1;
}

// For each kind one product from descriptors and one from registers; the types alternate with N.
struct F16 {
  template <class T, int kSize, class A>
  __device__ void operator()(T (&d)[kSize], const A& a, u64 b) const {
    if constexpr (kSize / 4 % 2 == 0) {
      wgmma_f16<false, true>(d, b, b, false);
      wgmma_f16<true>(d, a, b, true);
    } else {
      wgmma_bf16<true, false>(d, b, b, false);
      wgmma_bf16<false>(d, a, b, true);
    }
  }
};
struct F8 {
  template <class T, int kSize, class A>
  __device__ void operator()(T (&d)[kSize], const A& a, u64 b) const {
    constexpr int kTurn = kSize / 4 % 4;
    if constexpr (kTurn == 0) {
      wgmma_e4m3(d, b, b, false);
      wgmma_e4m3(d, a, b, true);
    } else if constexpr (kTurn == 1) {
      wgmma_e5m2(d, b, b, true);
      wgmma_e5m2(d, a, b, true);
    } else if constexpr (kTurn == 2) {
      wgmma_e4m3_e5m2(d, b, b, true);
      wgmma_e4m3_e5m2(d, a, b, true);
    } else {
      wgmma_e5m2_e4m3(d, b, b, true);
      wgmma_e5m2_e4m3(d, a, b, true);
    }
  }
};
struct S8 {
  template <class T, int kSize, class A>
  __device__ void operator()(T (&d)[kSize], const A& a, u64 b) const {
    constexpr int kTurn = kSize / 8 % 4;
    if constexpr (kTurn == 0) {
      wgmma_s8(d, b, b, false);
      wgmma_s8(d, a, b, true);
    } else if constexpr (kTurn == 1) {
      wgmma_u8(d, b, b, true);
      wgmma_u8(d, a, b, true);
    } else if constexpr (kTurn == 2) {
      wgmma_u8_s8(d, b, b, true);
      wgmma_u8_s8(d, a, b, true);
    } else {
      wgmma_s8_u8(d, b, b, true);
      wgmma_s8_u8(d, a, b, true);
    }
  }
};

// One kernel for every N: in a single kernel, ptxas would take a minute to allocate registers.
template <class Calls, class T, int kSize>
__device__ void product(T* out, u64 b) {
  T d[kSize];
  for (int i = 0; i < kSize; ++i) d[i] = out[i];
  const u32 a[4] = {1, 2, 3, 4};
  pin(d);
  wgmma_fence();
  Calls{}(d, a, b);
  wgmma_commit();
  wgmma_wait<0>();
  pin(d);
  for (int i = 0; i < kSize; ++i) out[i] = d[i];
}
#define PRODUCT_F16(n, r, ...) \
  extern "C" __global__ void f32_f16_n##n(float* out, u64 b) { product<F16, float, r>(out, b); }
#define PRODUCT_F8(n, r) \
  extern "C" __global__ void f32_f8_n##n(float* out, u64 b) { product<F8, float, r>(out, b); }
#define PRODUCT_F8_F16(n, r, ...) \
  extern "C" __global__ void f16_f8_n##n(u32* out, u64 b) { product<F8, u32, r>(out, b); }
#define PRODUCT_S8(n, r, ...) \
  extern "C" __global__ void s32_s8_n##n(i32* out, u64 b) { product<S8, i32, r>(out, b); }
OCTAVO_WGMMA_EACH_F32(PRODUCT_F16)
// The same register lists as F16, so one N for each pair of types.
PRODUCT_F8(64, 32)
PRODUCT_F8(72, 36)
PRODUCT_F8(80, 40)
PRODUCT_F8(88, 44)
OCTAVO_WGMMA_EACH_F16(PRODUCT_F8_F16)
OCTAVO_WGMMA_EACH_S32(PRODUCT_S8)
