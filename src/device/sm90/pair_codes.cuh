// P's codes from pairs of FP16: by the exp unit and a conversion, or by arithmetic that leaves a
// code in the low byte of each half.
#pragma once

#include "device/ptx/math.cuh"
#include "device/sm90/geometry.cuh"

namespace octavo::sm90 {

template <class G>
struct PairCodes {
  static constexpr Sm90Forward C = G::C;

  // 16 x is the exponent of a code in eights: adding 1024 leaves its integer in the low byte.
  static OCTAVO_DEVICE u32 linear(u32 x) {
    constexpr u32 k128 = 0x58005800, k1024 = 0x64006400;
    return ptx::fma_f16x2(x, k128, k1024);
  }

  // Which sixteens of keys leave the exp unit to the others.
  static OCTAVO_DEVICE constexpr bool by_polynomial(int sixteen) {
    constexpr int kOfFour = sixteens_by_polynomial(C);
    return (sixteen + 1) * kOfFour / 4 != sixteen * kOfFour / 4;
  }
  // With y = x + 7 the code of 2^x is 8 (y - c), where c = 1 + f - 2^f for the fraction f of y: at
  // most 0.086, and near a parabola of f.
  //   v = 1 - (y + 1/32) / 32   of FP16 between 1/2 and 1, with a fraction of y in its low six
  //                             bits; held at 1 where the code is 0: for keys that are not seen,
  //                             and for what E4M3 has subnormals for
  //   e = 3.8828 g - 1.9990     g: v without the bits before that fraction, 1/2 and more
  //   1279 - 256 (v - e^2)      1024 and the code, as FP16 has steps of 1 there
  // 1/32 makes up for 1279, which should be 1279.3. P is off from 2^x by 2.80e-2 (rms; the nearest
  // code by 2.64e-2), and by 1.2e-3 in the mean. NaN becomes 0 in v, and in the end the byte 0x7f:
  // NaN again.
  static OCTAVO_DEVICE u32 polynomial(u32 x) {
    constexpr u32 kMinus1By32 = 0xa800a800, kStart = 0x3a3e3a3e;  // 25/32 - 1/1024
    constexpr u32 kBehindPoint = 0x383f383f;
    constexpr u32 kFactor = 0x43c443c4, kShift = 0xbfffbfff;
    constexpr u32 kMinus256 = 0xdc00dc00, k1279 = 0x64ff64ff;
    const u32 v = ptx::fma_sat_f16x2(x, kMinus1By32, kStart);
    const u32 e = ptx::fma_f16x2(v & kBehindPoint, kFactor, kShift);
    return ptx::fma_f16x2(ptx::fnma_f16x2(e, e, v), kMinus256, k1279);
  }

  // What is to be added to x so that its polynomial is the code of a subnormal, 2^(y + 2) where y
  // is below 1: log2(1 + 2^(y - 1)) is to stand for y, a parabola of it here (within 0.03 from -3
  // on). Above nothing is added, below and to keys that are not seen a number, which leaves them at
  // 0.
  static OCTAVO_DEVICE u32 lift(u32 x) {
    constexpr u32 kMinus7 = 0xc700c700, kMinus3 = 0xc200c200, kMinus1 = 0xbc00bc00;
    constexpr u32 kSquare = 0x2b1a2b1a, kMinusLinear = 0xb541b541, kConstant = 0x38c238c2;
    const u32 y = ptx::max_f16x2(ptx::sub_f16x2(x, kMinus7), kMinus3);
    const u32 u = ptx::max_f16x2(y ^ 0x80008000u, kMinus1);  // -y, or -1
    const u32 other = ptx::fma_f16x2(ptx::fma_f16x2(u, kSquare, kMinusLinear), u, kConstant);
    return ptx::sub_f16x2(ptx::max_f16x2(y, other), y);
  }

  // Two pairs become four codes.
  static OCTAVO_DEVICE u32 pack(u32 first, u32 second, int sixteen) {
    if (G::kIntegers || C.code_exp || by_polynomial(sixteen))
      return ptx::permute_bytes(first, second, 0x6420);
    return ptx::e4m3x2_from_f16x2(first) | ptx::e4m3x2_from_f16x2(second) << 16;
  }
};

}  // namespace octavo::sm90
