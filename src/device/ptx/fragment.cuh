// SPDX-License-Identifier: Apache-2.0
// Instructions that rearrange and convert fragments of mma.sync between its products.
#pragma once

#include "device/ptx/target.cuh"

namespace octavo::ptx {

// shfl.sync.idx.b32;  the value of lane `lane`
OCTAVO_PTX float shuffle_from(float x, u32 lane OCTAVO_AND_SITE)
    OCTAVO_BODY({ return __shfl_sync(0xffffffffu, x, static_cast<int>(lane)); });
OCTAVO_PTX i32 shuffle_from(i32 x, u32 lane OCTAVO_AND_SITE)
    OCTAVO_BODY({ return __shfl_sync(0xffffffffu, x, static_cast<int>(lane)); });

// movmatrix.sync.aligned.m8n8.trans.b16;  transposes an 8x8 matrix of 16-bit words. Lane l holds
// words (l%4)*2 and +1 of row l/4.
OCTAVO_PTX u32 transpose_matrix(u32 x OCTAVO_AND_SITE) OCTAVO_BODY({
  u32 d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(x));
  return d;
});

// ld.shared.b16 and cvt.f32.f16
OCTAVO_PTX float load_shared_f16(u32 address OCTAVO_AND_SITE) OCTAVO_BODY({
  float x;
  asm volatile("{ .reg .b16 h; ld.shared.b16 h, [%1]; cvt.f32.f16 %0, h; }"
               : "=f"(x)
               : "r"(address)
               : "memory");
  return x;
});

// cvt.rn.f16x2.e4m3x2 of the low and of the high half of x;  exact   sm_89
OCTAVO_PTX void f16x4_from_e4m3x4(u32& low, u32& high, u32 x) OCTAVO_BODY({
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h; }"
      : "=r"(low), "=r"(high)
      : "r"(x));
});

}  // namespace octavo::ptx
