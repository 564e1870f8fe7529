// SPDX-License-Identifier: Apache-2.0
// wgmma of 8-bit integers with exact 32-bit sums: wgmma_s8, wgmma_u8, wgmma_u8_s8, wgmma_s8_u8 (A's
// type, then B's), called as in wgmma.cuh.
//
// wgmma.mma_async.sync.aligned.m64nNk32.s32.u8.s8 d, a, b, accumulate;
// N is 8, 16, 24, 32 or a larger multiple of 16 up to 256; both operands are K-major.
#pragma once

#include "device/ptx/target.cuh"
#include "device/ptx/wgmma.cuh"
#include "device/ptx/wgmma_shapes.cuh"

namespace octavo::ptx {

#if defined(__CUDACC__)

#define OCTAVO_WGMMA(name, types, n, r, i0, i1, i2, i3, i4, i5, i6)                              \
  OCTAVO_PTX void wgmma_##name(i32(&d)[r], u64 a, u64 b, bool accumulate) {                      \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " i2                                          \
                 ", 0;\n"                                                                        \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.s32." types                         \
                 " {" OCTAVO_WGMMA_TEXT_##r "}, " i0 ", " i1 ", p;\n}"                           \
                 : OCTAVO_WGMMA_D_##r("+r")                                                      \
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));                           \
  }                                                                                              \
  OCTAVO_PTX void wgmma_##name(i32(&d)[r], const u32(&a)[4], u64 b, bool accumulate) {           \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " i5                                          \
                 ", 0;\n"                                                                        \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.s32." types                         \
                 " {" OCTAVO_WGMMA_TEXT_##r "}, {" i0 ", " i1 ", " i2 ", " i3 "}, " i4 ", p;\n}" \
                 : OCTAVO_WGMMA_D_##r("+r")                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                           \
                   "r"(static_cast<int>(accumulate)));                                           \
  }
#define OCTAVO_WGMMA_1(...) OCTAVO_WGMMA(s8, "s8.s8", __VA_ARGS__)
#define OCTAVO_WGMMA_2(...) OCTAVO_WGMMA(u8, "u8.u8", __VA_ARGS__)
#define OCTAVO_WGMMA_3(...) OCTAVO_WGMMA(u8_s8, "u8.s8", __VA_ARGS__)
#define OCTAVO_WGMMA_4(...) OCTAVO_WGMMA(s8_u8, "s8.u8", __VA_ARGS__)
OCTAVO_WGMMA_EACH_S32(OCTAVO_WGMMA_1)
OCTAVO_WGMMA_EACH_S32(OCTAVO_WGMMA_2)
OCTAVO_WGMMA_EACH_S32(OCTAVO_WGMMA_3)
OCTAVO_WGMMA_EACH_S32(OCTAVO_WGMMA_4)
#undef OCTAVO_WGMMA_1
#undef OCTAVO_WGMMA_2
#undef OCTAVO_WGMMA_3
#undef OCTAVO_WGMMA_4
#undef OCTAVO_WGMMA

#else

#define OCTAVO_WGMMA(name, type_a, type_b)                                                        \
  template <int kSize, class A>                                                                   \
  void wgmma_##name(i32(&d)[kSize], const A& a, u64 b, bool accumulate,                           \
                    Site site = Site::here()) {                                                   \
    static_assert((kSize % 8 == 0 || kSize == 4 || kSize == 12) && kSize <= 128,                  \
                  "N is 8, 16, 24, 32 or a larger multiple of 16 up to 256");                     \
    wgmma({WgmmaType::s32, WgmmaType::type_a, WgmmaType::type_b, kSize * 2}, d, a, b, accumulate, \
          site);                                                                                  \
  }
OCTAVO_WGMMA(s8, s8, s8)
OCTAVO_WGMMA(u8, u8, u8)
OCTAVO_WGMMA(u8_s8, u8, s8)
OCTAVO_WGMMA(s8_u8, s8, u8)
#undef OCTAVO_WGMMA

#endif

}  // namespace octavo::ptx
