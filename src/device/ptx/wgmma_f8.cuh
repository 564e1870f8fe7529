// SPDX-License-Identifier: Apache-2.0
// wgmma of FP8 operands: wgmma_e4m3, wgmma_e5m2, wgmma_e4m3_e5m2, wgmma_e5m2_e4m3 (A's type, then
// B's), with FP32 accumulators (float) or FP16 ones (u32, two columns each), called as in
// wgmma.cuh.
//
// wgmma.mma_async.sync.aligned.m64nNk32.f32.e4m3.e5m2 d, a, b, accumulate, 1, 1;
// N is a multiple of 8 up to 256; both operands are K-major. FP32 accumulators keep about 14 bits
// of each sum: promote them to FP32 registers at least every 192 keys.
#pragma once

#include "device/ptx/target.cuh"
#include "device/ptx/wgmma.cuh"
#include "device/ptx/wgmma_shapes.cuh"

namespace octavo::ptx {

#if defined(__CUDACC__)

#define OCTAVO_WGMMA(name, types, word, constraint, n, r, i0, i1, i2, i3, i4, i5, i6)           \
  OCTAVO_PTX void wgmma_##name(word(&d)[r], u64 a, u64 b, bool accumulate) {                    \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " i2                                         \
                 ", 0;\n"                                                                       \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32." types " {" OCTAVO_WGMMA_TEXT_##r \
                 "}, " i0 ", " i1 ", p, 1, 1;\n}"                                               \
                 : OCTAVO_WGMMA_D_##r(constraint)                                               \
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));                          \
  }                                                                                             \
  OCTAVO_PTX void wgmma_##name(word(&d)[r], const u32(&a)[4], u64 b, bool accumulate) {         \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " i5                                         \
                 ", 0;\n"                                                                       \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32." types " {" OCTAVO_WGMMA_TEXT_##r \
                 "}, {" i0 ", " i1 ", " i2 ", " i3 "}, " i4 ", p, 1, 1;\n}"                     \
                 : OCTAVO_WGMMA_D_##r(constraint)                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                          \
                   "r"(static_cast<int>(accumulate)));                                          \
  }
#define OCTAVO_WGMMA_F32_1(...) OCTAVO_WGMMA(e4m3, "f32.e4m3.e4m3", float, "+f", __VA_ARGS__)
#define OCTAVO_WGMMA_F32_2(...) OCTAVO_WGMMA(e5m2, "f32.e5m2.e5m2", float, "+f", __VA_ARGS__)
#define OCTAVO_WGMMA_F32_3(...) OCTAVO_WGMMA(e4m3_e5m2, "f32.e4m3.e5m2", float, "+f", __VA_ARGS__)
#define OCTAVO_WGMMA_F32_4(...) OCTAVO_WGMMA(e5m2_e4m3, "f32.e5m2.e4m3", float, "+f", __VA_ARGS__)
#define OCTAVO_WGMMA_F16_1(...) OCTAVO_WGMMA(e4m3, "f16.e4m3.e4m3", u32, "+r", __VA_ARGS__)
#define OCTAVO_WGMMA_F16_2(...) OCTAVO_WGMMA(e5m2, "f16.e5m2.e5m2", u32, "+r", __VA_ARGS__)
#define OCTAVO_WGMMA_F16_3(...) OCTAVO_WGMMA(e4m3_e5m2, "f16.e4m3.e5m2", u32, "+r", __VA_ARGS__)
#define OCTAVO_WGMMA_F16_4(...) OCTAVO_WGMMA(e5m2_e4m3, "f16.e5m2.e4m3", u32, "+r", __VA_ARGS__)
OCTAVO_WGMMA_EACH_F32(OCTAVO_WGMMA_F32_1)
OCTAVO_WGMMA_EACH_F32(OCTAVO_WGMMA_F32_2)
OCTAVO_WGMMA_EACH_F32(OCTAVO_WGMMA_F32_3)
OCTAVO_WGMMA_EACH_F32(OCTAVO_WGMMA_F32_4)
OCTAVO_WGMMA_EACH_F16(OCTAVO_WGMMA_F16_1)
OCTAVO_WGMMA_EACH_F16(OCTAVO_WGMMA_F16_2)
OCTAVO_WGMMA_EACH_F16(OCTAVO_WGMMA_F16_3)
OCTAVO_WGMMA_EACH_F16(OCTAVO_WGMMA_F16_4)
#undef OCTAVO_WGMMA_F32_1
#undef OCTAVO_WGMMA_F32_2
#undef OCTAVO_WGMMA_F32_3
#undef OCTAVO_WGMMA_F32_4
#undef OCTAVO_WGMMA_F16_1
#undef OCTAVO_WGMMA_F16_2
#undef OCTAVO_WGMMA_F16_3
#undef OCTAVO_WGMMA_F16_4
#undef OCTAVO_WGMMA

#else

#define OCTAVO_WGMMA(name, word, columns, type_d, type_a, type_b)                                  \
  template <int kSize, class A>                                                                    \
  void wgmma_##name(word(&d)[kSize], const A& a, u64 b, bool accumulate,                           \
                    Site site = Site::here()) {                                                    \
    static_assert(kSize * columns % 4 == 0 && kSize * columns <= 128,                              \
                  "N is a multiple of 8 up to 256");                                               \
    wgmma({WgmmaType::type_d, WgmmaType::type_a, WgmmaType::type_b, kSize * columns * 2}, d, a, b, \
          accumulate, site);                                                                       \
  }
#define OCTAVO_WGMMA_BOTH(name, type_a, type_b)     \
  OCTAVO_WGMMA(name, float, 1, f32, type_a, type_b) \
  OCTAVO_WGMMA(name, u32, 2, f16, type_a, type_b)
OCTAVO_WGMMA_BOTH(e4m3, e4m3, e4m3)
OCTAVO_WGMMA_BOTH(e5m2, e5m2, e5m2)
OCTAVO_WGMMA_BOTH(e4m3_e5m2, e4m3, e5m2)
OCTAVO_WGMMA_BOTH(e5m2_e4m3, e5m2, e4m3)
#undef OCTAVO_WGMMA_BOTH
#undef OCTAVO_WGMMA

#endif

}  // namespace octavo::ptx
