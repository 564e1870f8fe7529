// Fences: between the generic proxy and the one that TMA and wgmma use, and for new mbarriers.
#pragma once

#include "device/ptx/target.cuh"

namespace octavo::ptx {

// fence.proxy.async.shared::cta;  this thread's writes to shared memory so far are seen by wgmma
// and TMA that start after the barrier that follows. Every writing thread needs it.
OCTAVO_PTX void fence_proxy_async(OCTAVO_SITE) OCTAVO_BODY({
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
});
// fence.proxy.async;  the same for shared memory of the cluster and global memory
OCTAVO_PTX void fence_proxy_async_all(OCTAVO_SITE) OCTAVO_BODY({
  asm volatile("fence.proxy.async;" ::: "memory");
});
// fence.mbarrier_init.release.cluster;  mbarriers this thread initialised are ready for the
// async proxy and, after a cluster barrier, for other CTAs. Cheaper than a releasing cluster
// barrier, which would wait for copies already started.
OCTAVO_PTX void fence_mbarrier_init(OCTAVO_SITE) OCTAVO_BODY({
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
});

}  // namespace octavo::ptx
