// SPDX-License-Identifier: Apache-2.0
// Thread block clusters: cluster barriers and distributed shared memory.
#pragma once

#include "device/ptx/target.cuh"

namespace octavo::ptx {

// mov.u32 r, %cluster_ctarank;
OCTAVO_PTX u32 cluster_cta_rank() OCTAVO_BODY({
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
});
// mov.u32 r, %cluster_nctarank;
OCTAVO_PTX u32 cluster_cta_count() OCTAVO_BODY({
  u32 count;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
  return count;
});
// barrier.cluster.arrive.release.aligned;  releases this thread's writes, and waits for the copies
// it has started
OCTAVO_PTX void cluster_arrive(OCTAVO_SITE) OCTAVO_BODY({
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
});
// barrier.cluster.arrive.relaxed.aligned;  orders no memory accesses
OCTAVO_PTX void cluster_arrive_relaxed(OCTAVO_SITE) OCTAVO_BODY({
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
});
// barrier.cluster.wait.acquire.aligned;
OCTAVO_PTX void cluster_wait(OCTAVO_SITE) OCTAVO_BODY({
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
});
// mapa.shared::cluster.u32 r, address, cta;  the same offset in another CTA's shared memory
OCTAVO_PTX u32 map_to_cta(u32 address, u32 cta) OCTAVO_BODY({
  u32 remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(cta));
  return remote;
});
// st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [remote], x, [remote_bar];
// The mbarrier is in the same CTA as the destination. Needs a cluster launch.
OCTAVO_PTX void st_async_b32(u32 remote, u32 x, u32 remote_bar OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(remote),
      "r"(x), "r"(remote_bar)
      : "memory");
});
// st.async....v2.b32 and .v4.b32;  `remote` is a multiple of 8 and of 16 respectively
OCTAVO_PTX
void st_async_b64(u32 remote, const u32 (&x)[2], u32 remote_bar OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
          remote),
      "r"(x[0]), "r"(x[1]), "r"(remote_bar)
      : "memory");
});
OCTAVO_PTX void st_async_b128(u32 remote, const u32 (&x)[4], u32 remote_bar OCTAVO_AND_SITE)
    OCTAVO_BODY({
      asm volatile(
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
          "[%5];" ::"r"(remote),
          "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(remote_bar)
          : "memory");
    });
// ld.shared::cluster.f32 and .v4.b32
OCTAVO_PTX float load_remote_f32(u32 remote OCTAVO_AND_SITE) OCTAVO_BODY({
  float x;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(remote) : "memory");
  return x;
});
OCTAVO_PTX void load_remote_b128(u32 remote, u32 (&x)[4] OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(remote)
               : "memory");
});

}  // namespace octavo::ptx
