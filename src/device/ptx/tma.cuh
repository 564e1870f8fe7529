// SPDX-License-Identifier: Apache-2.0
// TMA: bulk copies between global and shared memory that one thread starts.
//
// A tensor map, encoded by the host, holds base, shape, strides, box and swizzle; a copy names the
// first element of its box, innermost coordinate first. A load writes the whole box, with zeros
// outside the tensor, and completes all of its bytes on an mbarrier. A store writes the part inside
// the tensor and completes in a bulk group of the thread that started it.
#pragma once

#include "device/ptx/l2_policy.cuh"
#include "device/ptx/target.cuh"

namespace octavo::ptx {

// CUtensorMap: 128 opaque bytes, a kernel parameter.
struct alignas(128) TensorMap {
  u64 opaque[16];
};

// prefetch.tensormap [map];
OCTAVO_PTX void prefetch_tensor_map(const TensorMap* map OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
});

// For a tensor of `dim` dimensions; at1 to at4 are its coordinates as operands from %1, ... %4 on:
//
// cp.async.bulk.tensor.Nd.shared::cluster.global.tile.mbarrier::complete_tx::bytes
//   [to], [map, {at}], [bar];
// ... .L2::cache_hint [to], [map, {at}], [bar], policy;
// ... .multicast::cluster [to], [map, {at}], [bar], ctas;  to the same place, with a completion on
//   the same mbarrier, in every CTA whose bit is set
// cp.async.bulk.prefetch.tensor.Nd.L2.global.tile [map, {at}];
// cp.async.bulk.tensor.Nd.global.shared::cta.tile.bulk_group [map, {at}], [from];
// cp.reduce.async.bulk.tensor.Nd.global.shared::cta.add.tile.bulk_group [map, {at}], [from];
#define OCTAVO_TMA(dim, at1, at2, at3, at4, ...)                                                  \
  OCTAVO_PTX void tma_load(u32 to, const TensorMap* map, u32 bar,                                 \
                           const i32(&at)[dim] OCTAVO_AND_SITE) OCTAVO_BODY({                     \
    asm volatile("cp.async.bulk.tensor." #dim                                                     \
                 "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {" at3    \
                 "}], [%2];" ::"r"(to),                                                           \
                 "l"(map), "r"(bar), __VA_ARGS__                                                  \
                 : "memory");                                                                     \
  });                                                                                             \
  OCTAVO_PTX void tma_load(u32 to, const TensorMap* map, u32 bar, const i32(&at)[dim],            \
                           u64 policy OCTAVO_AND_SITE) OCTAVO_BODY({                              \
    asm volatile("cp.async.bulk.tensor." #dim                                                     \
                 "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "     \
                 "[%0], [%1, {" at4 "}], [%2], %3;" ::"r"(to),                                    \
                 "l"(map), "r"(bar), "l"(policy), __VA_ARGS__                                     \
                 : "memory");                                                                     \
  });                                                                                             \
  OCTAVO_PTX void tma_load_multicast(u32 to, const TensorMap* map, u32 bar, const i32(&at)[dim],  \
                                     u16 ctas OCTAVO_AND_SITE) OCTAVO_BODY({                      \
    asm volatile("cp.async.bulk.tensor." #dim                                                     \
                 "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster " \
                 "[%0], [%1, {" at4 "}], [%2], %3;" ::"r"(to),                                    \
                 "l"(map), "r"(bar), "h"(ctas), __VA_ARGS__                                       \
                 : "memory");                                                                     \
  });                                                                                             \
  OCTAVO_PTX void tma_prefetch(const TensorMap* map, const i32(&at)[dim] OCTAVO_AND_SITE)         \
      OCTAVO_BODY({                                                                               \
        asm volatile("cp.async.bulk.prefetch.tensor." #dim "d.L2.global.tile [%0, {" at1          \
                     "}];" ::"l"(map),                                                            \
                     __VA_ARGS__                                                                  \
                     : "memory");                                                                 \
      });                                                                                         \
  OCTAVO_PTX void tma_store(const TensorMap* map, u32 from, const i32(&at)[dim] OCTAVO_AND_SITE)  \
      OCTAVO_BODY({                                                                               \
        asm volatile("cp.async.bulk.tensor." #dim                                                 \
                     "d.global.shared::cta.tile.bulk_group [%0, {" at2 "}], [%1];" ::"l"(map),    \
                     "r"(from), __VA_ARGS__                                                       \
                     : "memory");                                                                 \
      });                                                                                         \
  OCTAVO_PTX void tma_reduce_add(const TensorMap* map, u32 from,                                  \
                                 const i32(&at)[dim] OCTAVO_AND_SITE) OCTAVO_BODY({               \
    asm volatile("cp.reduce.async.bulk.tensor." #dim                                              \
                 "d.global.shared::cta.add.tile.bulk_group [%0, {" at2 "}], [%1];" ::"l"(map),    \
                 "r"(from), __VA_ARGS__                                                           \
                 : "memory");                                                                     \
  });

OCTAVO_TMA(1, "%1", "%2", "%3", "%4", "r"(at[0]))
OCTAVO_TMA(2, "%1, %2", "%2, %3", "%3, %4", "%4, %5", "r"(at[0]), "r"(at[1]))
OCTAVO_TMA(3, "%1, %2, %3", "%2, %3, %4", "%3, %4, %5", "%4, %5, %6", "r"(at[0]), "r"(at[1]),
           "r"(at[2]))
OCTAVO_TMA(4, "%1, %2, %3, %4", "%2, %3, %4, %5", "%3, %4, %5, %6", "%4, %5, %6, %7", "r"(at[0]),
           "r"(at[1]), "r"(at[2]), "r"(at[3]))
OCTAVO_TMA(5, "%1, %2, %3, %4, %5", "%2, %3, %4, %5, %6", "%3, %4, %5, %6, %7",
           "%4, %5, %6, %7, %8", "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]))
#undef OCTAVO_TMA

// cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [to], [from], bytes, [bar];
// Addresses and bytes are multiples of 16.
OCTAVO_PTX void bulk_load(u32 to, const void* from, u32 bytes, u32 bar OCTAVO_AND_SITE)
    OCTAVO_BODY({
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
          "[%3];" ::"r"(to),
          "l"(from), "r"(bytes), "r"(bar)
          : "memory");
    });
// cp.async.bulk.global.shared::cta.bulk_group [to], [from], bytes;
OCTAVO_PTX void bulk_store(void* to, u32 from, u32 bytes OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
});
// cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [to], [from], bytes;  adds FP32 values
// of shared memory to global memory, each atomically. Addresses and bytes are multiples of 16.
OCTAVO_PTX void bulk_reduce_add_f32(void* to, u32 from, u32 bytes OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
});
// cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [from], bytes,
// [bar]; To another CTA of the cluster, where the mbarrier lies too.
OCTAVO_PTX
void bulk_send(u32 remote_to, u32 from, u32 bytes, u32 remote_bar OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(remote_to),
      "r"(from), "r"(bytes), "r"(remote_bar)
      : "memory");
});
// cp.async.bulk.commit_group;  groups the stores this thread has started since the last commit
OCTAVO_PTX void bulk_commit(OCTAVO_SITE) OCTAVO_BODY({
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
});
// cp.async.bulk.wait_group n;  all but the newest n groups are complete, and their writes are
// visible
template <int kPending>
OCTAVO_PTX void bulk_wait(OCTAVO_SITE) OCTAVO_BODY({
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
});
// cp.async.bulk.wait_group.read n;  all but the newest n groups have read their source, which may
// be overwritten
template <int kPending>
OCTAVO_PTX void bulk_wait_read(OCTAVO_SITE) OCTAVO_BODY({
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
});

}  // namespace octavo::ptx
