// SPDX-License-Identifier: Apache-2.0
// wgmma of 16-bit operands with FP32 accumulation: wgmma_f16 and wgmma_bf16, called as in
// wgmma.cuh.
//
// wgmma.mma_async.sync.aligned.m64nNk16.f32.f16.f16 d, a, b, accumulate, 1, 1, trans_a, trans_b;
// N is a multiple of 8 up to 256. A transposed operand is MN-major; A in registers has no such
// flag.
#pragma once

#include "device/ptx/target.cuh"
#include "device/ptx/wgmma.cuh"
#include "device/ptx/wgmma_shapes.cuh"

namespace octavo::ptx {

#if defined(__CUDACC__)

#define OCTAVO_WGMMA(type, n, r, i0, i1, i2, i3, i4, i5, i6)                                 \
  template <bool kTransposeA, bool kTransposeB>                                              \
  OCTAVO_PTX void wgmma_##type(float(&d)[r], u64 a, u64 b, bool accumulate) {                \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " i2                                      \
                 ", 0;\n"                                                                    \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type           \
                 " {" OCTAVO_WGMMA_TEXT_##r "}, " i0 ", " i1 ", p, 1, 1, " i3 ", " i4 ";\n}" \
                 : OCTAVO_WGMMA_D_##r("+f")                                                  \
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)),                        \
                   "n"(static_cast<int>(kTransposeA)), "n"(static_cast<int>(kTransposeB)));  \
  }                                                                                          \
  template <bool kTransposeB>                                                                \
  OCTAVO_PTX void wgmma_##type(float(&d)[r], const u32(&a)[4], u64 b, bool accumulate) {     \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " i5                                      \
                 ", 0;\n"                                                                    \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type           \
                 " {" OCTAVO_WGMMA_TEXT_##r "}, {" i0 ", " i1 ", " i2 ", " i3 "}, " i4       \
                                            ", p, 1, 1, " i6 ";\n}"                          \
                 : OCTAVO_WGMMA_D_##r("+f")                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                       \
                   "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kTransposeB)));   \
  }
#define OCTAVO_WGMMA_F16(...) OCTAVO_WGMMA(f16, __VA_ARGS__)
#define OCTAVO_WGMMA_BF16(...) OCTAVO_WGMMA(bf16, __VA_ARGS__)
OCTAVO_WGMMA_EACH_F32(OCTAVO_WGMMA_F16)
OCTAVO_WGMMA_EACH_F32(OCTAVO_WGMMA_BF16)
#undef OCTAVO_WGMMA_F16
#undef OCTAVO_WGMMA_BF16
#undef OCTAVO_WGMMA

#else

#define OCTAVO_WGMMA(type)                                                                         \
  template <bool kTransposeA, bool kTransposeB, int kSize>                                         \
  void wgmma_##type(float(&d)[kSize], u64 a, u64 b, bool accumulate, Site site = Site::here()) {   \
    static_assert(kSize % 4 == 0 && kSize <= 128, "N is a multiple of 8 up to 256");               \
    wgmma({WgmmaType::f32, WgmmaType::type, WgmmaType::type, kSize * 2, kTransposeA, kTransposeB}, \
          d, a, b, accumulate, site);                                                              \
  }                                                                                                \
  template <bool kTransposeB, int kSize>                                                           \
  void wgmma_##type(float(&d)[kSize], const u32(&a)[4], u64 b, bool accumulate,                    \
                    Site site = Site::here()) {                                                    \
    static_assert(kSize % 4 == 0 && kSize <= 128, "N is a multiple of 8 up to 256");               \
    wgmma({WgmmaType::f32, WgmmaType::type, WgmmaType::type, kSize * 2, false, kTransposeB}, d, a, \
          b, accumulate, site);                                                                    \
  }
OCTAVO_WGMMA(f16)
OCTAVO_WGMMA(bf16)
#undef OCTAVO_WGMMA

#endif

}  // namespace octavo::ptx
