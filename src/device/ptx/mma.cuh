// SPDX-License-Identifier: Apache-2.0
// mma.sync: D = A B + C on one warp. A is row-major, B column-major. C may be D, or zeros, which
// need no registers. With g = lane/4, t = lane%4:
//   D   d[0..1]: row g, columns 2t, 2t+1; d[2..3]: row g+8
//   A   16-bit (m16k16): a0 row g, k 2t..2t+1; a1 row g+8; a2, a3 the same with k+8
//       8-bit (m16k32):  a0 row g, k 4t..4t+3; a1 row g+8; a2, a3 the same with k+16
//   B   16-bit (k16n8):  b0 column g, k 2t..2t+1; b1 with k+8
//       8-bit (k32n8):   b0 column g, k 4t..4t+3; b1 with k+16
#pragma once

#include "device/ptx/target.cuh"

namespace octavo::ptx {

// mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32   PTX 7.0, sm_80
OCTAVO_PTX void mma_m16n8k16_f16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2],
                                 const float (&c)[4] OCTAVO_AND_SITE) OCTAVO_BODY({
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
});
// mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16   PTX 7.0, sm_80;  d[0]: row g, d[1]: row g+8
OCTAVO_PTX void mma_m16n8k16_f16_in_f16(u32 (&d)[2], const u32 (&a)[4], const u32 (&b)[2],
                                        const u32 (&c)[2] OCTAVO_AND_SITE) OCTAVO_BODY({
  asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, "
      "{%2, %3, %4, %5}, {%6, %7}, {%8, %9};"
      : "=r"(d[0]), "=r"(d[1])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]));
});
// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32   PTX 7.0, sm_80
OCTAVO_PTX void mma_m16n8k16_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2],
                                  const float (&c)[4] OCTAVO_AND_SITE) OCTAVO_BODY({
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
});
// mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32   PTX 8.4, sm_89
OCTAVO_PTX void mma_m16n8k32_e4m3(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2],
                                  const float (&c)[4] OCTAVO_AND_SITE) OCTAVO_BODY({
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
});
// mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32   PTX 8.4, sm_89
OCTAVO_PTX void mma_m16n8k32_e5m2(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2],
                                  const float (&c)[4] OCTAVO_AND_SITE) OCTAVO_BODY({
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
});
// mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32   PTX 8.4, sm_89
OCTAVO_PTX void mma_m16n8k32_e4m3_e5m2(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2],
                                       const float (&c)[4] OCTAVO_AND_SITE) OCTAVO_BODY({
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
});
// mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32   PTX 7.0, sm_80
OCTAVO_PTX void mma_m16n8k32_s8(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2],
                                const i32 (&c)[4] OCTAVO_AND_SITE) OCTAVO_BODY({
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]),
        "r"(c[2]), "r"(c[3]));
});
// mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32   PTX 7.0, sm_80
OCTAVO_PTX void mma_m16n8k32_u8_s8(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2],
                                   const i32 (&c)[4] OCTAVO_AND_SITE) OCTAVO_BODY({
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]),
        "r"(c[2]), "r"(c[3]));
});

}  // namespace octavo::ptx
