// SPDX-License-Identifier: Apache-2.0
// mbarrier: a phase completes after a number of arrivals and, with asynchronous copies, of bytes.
//
// A phase ends when all arrivals have been made and the expected bytes have arrived; the next phase
// begins at once with the same count. A waiting thread names the parity of the phase: 0 for the
// first, then 1, 0, ...
#pragma once

#include "device/ptx/target.cuh"

namespace octavo::ptx {

inline constexpr u32 kMbarrierBytes = 8;  // and its alignment

// mbarrier.init.shared::cta.b64 [bar], arrivals;
// Other threads of the CTA may use it after a barrier, the async proxy and other CTAs after
// fence_mbarrier_init.
OCTAVO_PTX void mbarrier_init(u32 bar, u32 arrivals OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
});
// mbarrier.inval.shared::cta.b64 [bar];  its bytes may be reused afterwards
OCTAVO_PTX void mbarrier_invalidate(u32 bar OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
});
// mbarrier.arrive.shared::cta.b64 _, [bar];
OCTAVO_PTX void mbarrier_arrive(u32 bar OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
});
// mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], bytes;  does not arrive
OCTAVO_PTX void mbarrier_expect_tx(u32 bar, u32 bytes OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(bytes)
               : "memory");
});
// mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], bytes;  expects the bytes, then arrives
OCTAVO_PTX void mbarrier_arrive_expect_tx(u32 bar, u32 bytes OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
               : "memory");
});
// cp.async.mbarrier.arrive.noinc.shared::cta.b64 [bar];  makes one of the counted arrivals when
// this thread's earlier cp.async copies are complete
OCTAVO_PTX void mbarrier_arrive_after_cp_async(u32 bar OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
});
// mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];  `remote` is from map_to_cta
OCTAVO_PTX void mbarrier_arrive_remote(u32 remote OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote)
               : "memory");
});
// mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [remote], bytes;
OCTAVO_PTX void mbarrier_arrive_expect_tx_remote(u32 remote,
                                                 u32 bytes OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile(
      "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%0], %1;" ::"r"(remote),
      "r"(bytes)
      : "memory");
});
// mbarrier.test_wait.parity.shared::cta.b64 done, [bar], parity;  whether that phase has ended
OCTAVO_PTX bool mbarrier_test(u32 bar, u32 parity OCTAVO_AND_SITE) OCTAVO_BODY({
  u32 done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(bar), "r"(parity)
      : "memory");
  return done != 0;
});
// mbarrier.try_wait.parity.shared::cta.b64 done, [bar], parity;  whether that phase has ended; may
// suspend the thread for a while first
OCTAVO_PTX bool mbarrier_try_wait(u32 bar, u32 parity OCTAVO_AND_SITE) OCTAVO_BODY({
  u32 done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(bar), "r"(parity)
      : "memory");
  return done != 0;
});
// Repeats try_wait until the phase has ended.
OCTAVO_PTX void mbarrier_wait(u32 bar, u32 parity OCTAVO_AND_SITE) OCTAVO_BODY({
  while (!mbarrier_try_wait(bar, parity)) {
  }
});
// mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64, repeated until the phase has ended: for
// arrivals and data from another CTA of the cluster
OCTAVO_PTX void mbarrier_wait_cluster(u32 bar, u32 parity OCTAVO_AND_SITE) OCTAVO_BODY({
  u32 done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(bar), "r"(parity)
        : "memory");
  }
});

}  // namespace octavo::ptx
