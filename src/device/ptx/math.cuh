// SPDX-License-Identifier: Apache-2.0
// Arithmetic that needs a particular instruction: exponentials, conversions, byte permutes.
#pragma once

#include "device/ptx/target.cuh"

namespace octavo::ptx {

// ex2.approx.ftz.f32;  2^x, 2 ulp, 0 for -infinity
OCTAVO_PTX float exp2_approx(float x) OCTAVO_BODY({
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
});
// ex2.approx.f16x2;  0 for -infinity
OCTAVO_PTX u32 exp2_approx_f16x2(u32 x) OCTAVO_BODY({
  u32 y;
  asm("ex2.approx.f16x2 %0, %1;" : "=r"(y) : "r"(x));
  return y;
});
// lg2.approx.ftz.f32
OCTAVO_PTX float log2_approx(float x) OCTAVO_BODY({
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
});
// rcp.approx.ftz.f32
OCTAVO_PTX float reciprocal_approx(float x) OCTAVO_BODY({
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
});
// fma.rn.f32
OCTAVO_PTX float fused_multiply_add(float a, float b, float c)
    OCTAVO_BODY({ return __fmaf_rn(a, b, c); });
// fma.rn.sat.f32;  clamped to [0, 1], 0 for NaN
OCTAVO_PTX float fma_sat_f32(float a, float b, float c) OCTAVO_BODY({
  float d;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
  return d;
});
// abs.f32
OCTAVO_PTX float abs_f32(float x) OCTAVO_BODY({ return fabsf(x); });
// max.f32;  the other operand when one is NaN
OCTAVO_PTX float max_f32(float a, float b) OCTAVO_BODY({ return fmaxf(a, b); });
OCTAVO_PTX float min_f32(float a, float b) OCTAVO_BODY({ return fminf(a, b); });

// cvt.rn.f16x2.f32 d, high, low;
OCTAVO_PTX u32 f16x2_from_f32(float low, float high) OCTAVO_BODY({
  u32 d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
});
// cvt.rn.bf16x2.f32 d, high, low;   sm_80
OCTAVO_PTX u32 bf16x2_from_f32(float low, float high) OCTAVO_BODY({
  u32 d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
});
// cvt.rn.satfinite.e4m3x2.f32 d, high, low;   sm_89
OCTAVO_PTX u32 e4m3x2_from_f32(float low, float high) OCTAVO_BODY({
  u16 d;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(d) : "f"(high), "f"(low));
  return d;
});
// cvt.rn.f16x2.e4m3x2;  exact   sm_89
OCTAVO_PTX u32 f16x2_from_e4m3x2(u32 x) OCTAVO_BODY({
  u32 d;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(d) : "h"(static_cast<u16>(x)));
  return d;
});
// cvt.rn.satfinite.e5m2x2.f32 d, high, low;   sm_89
OCTAVO_PTX u32 e5m2x2_from_f32(float low, float high) OCTAVO_BODY({
  u16 d;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(d) : "f"(high), "f"(low));
  return d;
});
// cvt.rn.satfinite.e4m3x2.f16x2   sm_89
OCTAVO_PTX u32 e4m3x2_from_f16x2(u32 x) OCTAVO_BODY({
  u16 d;
  asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(d) : "r"(x));
  return d;
});
// fma.rn.f16x2
OCTAVO_PTX u32 fma_f16x2(u32 a, u32 b, u32 c) OCTAVO_BODY({
  u32 d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
});
// fma.rn.sat.f16x2;  clamped to [0, 1], 0 for NaN
OCTAVO_PTX u32 fma_sat_f16x2(u32 a, u32 b, u32 c) OCTAVO_BODY({
  u32 d;
  asm("fma.rn.sat.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
});
// fma.rn.f16x2 of -a;  c - a b
OCTAVO_PTX u32 fnma_f16x2(u32 a, u32 b, u32 c) OCTAVO_BODY({
  u32 d;
  asm("{ .reg .b32 n; neg.f16x2 n, %1; fma.rn.f16x2 %0, n, %2, %3; }"
      : "=r"(d)
      : "r"(a), "r"(b), "r"(c));
  return d;
});
// max.f16x2;  the other operand when one is NaN
OCTAVO_PTX u32 max_f16x2(u32 a, u32 b) OCTAVO_BODY({
  u32 d;
  asm("max.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
});
// setp.ge.f16x2;  whether either half of a is >= the same half of b; false for NaN
OCTAVO_PTX bool any_ge_f16x2(u32 a, u32 b) OCTAVO_BODY({
  u32 any;
  asm("{ .reg .pred low, high;\n"
      "setp.ge.f16x2 low|high, %1, %2;\n"
      "or.pred low, low, high;\n"
      "selp.u32 %0, 1, 0, low; }"
      : "=r"(any)
      : "r"(a), "r"(b));
  return any != 0;
});
// sub.f16x2
OCTAVO_PTX u32 sub_f16x2(u32 a, u32 b) OCTAVO_BODY({
  u32 d;
  asm("sub.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
});
// cvt.f32.f16, applied to the low and to the high half
OCTAVO_PTX void f32_from_f16x2(float& low, float& high, u32 x) OCTAVO_BODY({
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
      : "=f"(low), "=f"(high)
      : "r"(x));
});
// shl.b32;  0 for 32 and more
OCTAVO_PTX u32 shift_left(u32 x, u32 by) OCTAVO_BODY({
  u32 d;
  asm("shl.b32 %0, %1, %2;" : "=r"(d) : "r"(x), "r"(by));
  return d;
});
// prmt.b32 d, a, b, selector;  byte i of d is byte selector[4i+2:4i] of {b, a}
OCTAVO_PTX u32 permute_bytes(u32 a, u32 b, u32 selector)
    OCTAVO_BODY({ return __byte_perm(a, b, selector); });
// dp4a.u32.u32;  c plus the four bytes of x
OCTAVO_PTX u32 add_bytes(u32 x, u32 c) OCTAVO_BODY({
  u32 d;
  asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(x), "r"(0x01010101u), "r"(c));
  return d;
});
OCTAVO_PTX float float_of_bits(u32 x) OCTAVO_BODY({ return __uint_as_float(x); });
OCTAVO_PTX u32 bits_of(float x) OCTAVO_BODY({ return __float_as_uint(x); });
OCTAVO_PTX float float_of_int(i32 x) OCTAVO_BODY({ return __int2float_rn(x); });

}  // namespace octavo::ptx
