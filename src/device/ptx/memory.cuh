// SPDX-License-Identifier: Apache-2.0
// Shared and global memory: plain accesses, ldmatrix, cp.async. Shared addresses are 32 bits.
#pragma once

#include "device/ptx/l2_policy.cuh"
#include "device/ptx/target.cuh"

namespace octavo::ptx {

// First byte of the CTA's dynamic shared memory.
OCTAVO_PTX u32 shared_base() OCTAVO_BODY({
  extern __shared__ __align__(1024) u8 octavo_shared[];
  return static_cast<u32>(__cvta_generic_to_shared(octavo_shared));
});

// ld.shared.b32 / st.shared.b32 and their wider and narrower forms
OCTAVO_PTX float load_shared_f32(u32 address OCTAVO_AND_SITE) OCTAVO_BODY({
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
  return x;
});
OCTAVO_PTX void store_shared_f32(u32 address, float x OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
});
OCTAVO_PTX void store_shared_b16(u32 address, u16 x OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(x) : "memory");
});
OCTAVO_PTX void store_shared_b8(u32 address, u8 x OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("st.shared.b8 [%0], %1;" ::"r"(address), "r"(static_cast<u32>(x)) : "memory");
});
OCTAVO_PTX void store_shared_b32(u32 address, u32 x OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
});
OCTAVO_PTX void store_shared_b128(u32 address, const u32 (&x)[4] OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]), "r"(x[1]),
               "r"(x[2]), "r"(x[3])
               : "memory");
});
OCTAVO_PTX void load_shared_b128(u32 address, u32 (&x)[4] OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
});
OCTAVO_PTX void load_shared_b64(u32 address, u32& x0, u32& x1 OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x0), "=r"(x1) : "r"(address) : "memory");
});

// ldmatrix.sync.aligned.m8n8.x4.shared.b16;  four 8x8 matrices of 16-bit words, one row address
// per lane (lanes 8i to 8i+7: matrix i). Lane l receives words (l%4)*2 and +1 of row l/4.
OCTAVO_PTX void ldmatrix_x4(u32 (&r)[4], u32 address OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
});
// The same, each matrix transposed.
OCTAVO_PTX void ldmatrix_x4_trans(u32 (&r)[4], u32 address OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
});

// ldmatrix.sync.aligned.m8n8.x2.shared.b16;  two matrices, addresses of lanes 0 to 15
OCTAVO_PTX void ldmatrix_x2(u32 (&r)[2], u32 address OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
});
OCTAVO_PTX void ldmatrix_x2_trans(u32 (&r)[2], u32 address OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
});

// cp.async.cg.shared.global.L2::128B [dst], [src], 16, !exists;  writes zeros and reads nothing
// unless `exists`. A size in a register instead of the predicate costs eight more instructions.
OCTAVO_PTX void cp_async_16(u32 dst, const void* src, bool exists OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile(
      "{ .reg .pred ignore; setp.eq.s32 ignore, %2, 0;\n"
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, ignore; }" ::"r"(dst),
      "l"(src), "r"(static_cast<int>(exists))
      : "memory");
});
// cp.async.cg.shared.global.L2::128B [dst], [src], 16, bytes;  zeros behind the first `bytes`
OCTAVO_PTX void cp_async_16_part(u32 dst, const void* src, u32 bytes OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
               "r"(bytes)
               : "memory");
});
// cp.async.cg.shared.global.L2::cache_hint [dst], [src], 16, !exists, policy;
OCTAVO_PTX void cp_async_16_hinted(u32 dst, const void* src, bool exists,
                                   u64 policy OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile(
      "{ .reg .pred ignore; setp.eq.s32 ignore, %2, 0;\n"
      "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, ignore, %3; }" ::"r"(dst),
      "l"(src), "r"(static_cast<int>(exists)), "l"(policy)
      : "memory");
});
// cp.async.ca.shared.global [dst], [src], 8 or 4, !exists;
template <int kBytes>
OCTAVO_PTX void cp_async_narrow(u32 dst, const void* src, bool exists OCTAVO_AND_SITE) OCTAVO_BODY({
  static_assert(kBytes == 4 || kBytes == 8, "cp.async.ca copies 4 or 8 bytes here");
  asm volatile(
      "{ .reg .pred ignore; setp.eq.s32 ignore, %3, 0;\n"
      "cp.async.ca.shared.global [%0], [%1], %2, ignore; }" ::"r"(dst),
      "l"(src), "n"(kBytes), "r"(static_cast<int>(exists))
      : "memory");
});
// cp.async.commit_group;
OCTAVO_PTX void cp_async_commit(OCTAVO_SITE) OCTAVO_BODY({
  asm volatile("cp.async.commit_group;" ::: "memory");
});
// cp.async.wait_group n;  all but the newest n groups of this thread are complete
template <int kPending>
OCTAVO_PTX void cp_async_wait(OCTAVO_SITE) OCTAVO_BODY({
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
});

// ld.global.nc of 2 and 1 bytes, for rows whose alignment allows no wider load
OCTAVO_PTX u16 load_global_b16(const void* p OCTAVO_AND_SITE)
    OCTAVO_BODY({ return __ldg(static_cast<const u16*>(p)); });
OCTAVO_PTX u8 load_global_b8(const void* p OCTAVO_AND_SITE)
    OCTAVO_BODY({ return __ldg(static_cast<const u8*>(p)); });
OCTAVO_PTX float load_global_f32(const float* p OCTAVO_AND_SITE) OCTAVO_BODY({ return __ldg(p); });
OCTAVO_PTX i32 load_global_i32(const i32* p OCTAVO_AND_SITE) OCTAVO_BODY({ return __ldg(p); });
// ld.global of 2, 1 and 4 bytes;  for data that an earlier grid may still be writing when this one
// starts, in threads that come after the wait for that grid. The ld.global.nc loads above are for
// data that nothing writes while the grid runs, and the compiler may move them before that wait.
OCTAVO_PTX u16 load_coherent_b16(const void* p OCTAVO_AND_SITE) OCTAVO_BODY({
  u16 x;
  asm volatile("ld.global.b16 %0, [%1];" : "=h"(x) : "l"(p));
  return x;
});
OCTAVO_PTX u8 load_coherent_b8(const void* p OCTAVO_AND_SITE) OCTAVO_BODY({
  u32 x;
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(x) : "l"(p));
  return static_cast<u8>(x);
});
OCTAVO_PTX i32 load_coherent_i32(const i32* p OCTAVO_AND_SITE) OCTAVO_BODY({
  i32 x;
  asm volatile("ld.global.s32 %0, [%1];" : "=r"(x) : "l"(p));
  return x;
});
// ld.relaxed.gpu.global.f32;  the same from L2, for single values that are read once
OCTAVO_PTX float load_written_f32(const float* p OCTAVO_AND_SITE) OCTAVO_BODY({
  float x;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(x) : "l"(p) : "memory");
  return x;
});
// The same if `exists`, else 0: predicated instead of a branch, so that many loads are in flight at
// once
OCTAVO_PTX float load_written_f32(const float* p, bool exists OCTAVO_AND_SITE) OCTAVO_BODY({
  float x;
  asm volatile(
      "{\n"
      ".reg .pred exists;\n"
      "setp.ne.u32 exists, %2, 0;\n"
      "mov.f32 %0, 0f00000000;\n"
      "@exists ld.relaxed.gpu.global.f32 %0, [%1];\n"
      "}\n"
      : "=f"(x)
      : "l"(p), "r"(static_cast<u32>(exists))
      : "memory");
  return x;
});

OCTAVO_PTX void store_global_b8(void* p, u8 x OCTAVO_AND_SITE)
    OCTAVO_BODY({ *static_cast<u8*>(p) = x; });
OCTAVO_PTX void store_global_b16(void* p, u16 x OCTAVO_AND_SITE)
    OCTAVO_BODY({ *static_cast<u16*>(p) = x; });
OCTAVO_PTX void store_global_b32(void* p, u32 x OCTAVO_AND_SITE)
    OCTAVO_BODY({ *static_cast<u32*>(p) = x; });
OCTAVO_PTX void store_global_b64(void* p, u32 x0, u32 x1 OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(p), "r"(x0), "r"(x1) : "memory");
});
OCTAVO_PTX void store_global_b128(void* p, const u32 (&x)[4] OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(x[0]), "r"(x[1]), "r"(x[2]),
               "r"(x[3])
               : "memory");
});
OCTAVO_PTX void store_global_f32(float* p, float x OCTAVO_AND_SITE) OCTAVO_BODY({ *p = x; });

}  // namespace octavo::ptx
