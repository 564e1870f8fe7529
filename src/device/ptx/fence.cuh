// SPDX-License-Identifier: Apache-2.0
// Fences between the generic and the async proxy (TMA, wgmma), and for new mbarriers.
#pragma once

#include "device/ptx/target.cuh"

namespace octavo::ptx {

// fence.proxy.async.shared::cta;  makes this thread's earlier writes to shared memory visible to
// wgmma and TMA that start after the barrier that follows. Every writing thread needs it.
OCTAVO_PTX void fence_proxy_async(OCTAVO_SITE) OCTAVO_BODY({
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
});
// fence.proxy.async;  the same, also for shared memory of the cluster and for global memory
OCTAVO_PTX void fence_proxy_async_all(OCTAVO_SITE) OCTAVO_BODY({
  asm volatile("fence.proxy.async;" ::: "memory");
});
// fence.mbarrier_init.release.cluster;  makes mbarriers that this thread initialised visible to the
// async proxy and, after a cluster barrier, to other CTAs. It is cheaper than a releasing cluster
// barrier, which would wait for copies already started.
OCTAVO_PTX void fence_mbarrier_init(OCTAVO_SITE) OCTAVO_BODY({
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
});

}  // namespace octavo::ptx
