// P in bytes, from integer scores: in pairs, with a byte at the low end of each half, as they are
// left by the exp unit and a conversion to FP16, or by a polynomial.
#pragma once

#include "device/ptx/math.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/pair_codes.cuh"
#include "device/sm90/row_maxima.cuh"
#include "device/sm90/scales.cuh"

namespace octavo::sm90 {

template <class G>
struct ByteCodes {
  using Scores = typename G::Scores;
  using Rows = typename G::Rows;
  static constexpr Sm90Forward C = G::C;

  // 255 * 2^x of two keys, with t = 1 + x / kReach of FP16 between 0 and 1: where t is 0, for keys
  // that are not seen as well, less than half a step is left.
  //   q = ((1.518 t + 0.043) t + 1.626) t + 0.809     near the fourth root
  //   q^4 + 1024                                      whole, as FP16 has steps of 1 there
  // On all t it is the nearest byte or one beside it, never above 255, and falls as x does; off by
  // 0.30 of a step (rms, x from 0 to -12), where the nearest byte is by 0.29.
  static constexpr float kReach = 9.1f;
  static OCTAVO_DEVICE u32 polynomial(float t0, float t1) {
    constexpr u32 kCubic = 0x3e123e12, kSquare = 0x29802980, kLinear = 0x3e813e81;
    constexpr u32 kConstant = 0x3a793a79, k1024 = 0x64006400;
    const u32 t = ptx::f16x2_from_f32(t0, t1);
    u32 q = ptx::fma_f16x2(t, kCubic, kSquare);
    q = ptx::fma_f16x2(q, t, kLinear);
    q = ptx::fma_f16x2(q, t, kConstant);
    q = ptx::fma_f16x2(q, q, 0);
    return ptx::fma_f16x2(q, q, k1024);
  }

  // Scores whose bias would cost them what they differ by.
  static OCTAVO_DEVICE void bring_near(Scores& scores) {
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float by = scores.near[half] ? G::kBias : 0.0f;
      OCTAVO_UNROLL
      for (int i = 0; i < G::kScores / 4; ++i) {
        scores.s[i * 4 + half * 2] -= by;
        scores.s[i * 4 + half * 2 + 1] -= by;
      }
    }
  }
  // What exponents count from, for scores that are biased or not. The product of bias and scale is
  // rounded by up to a unit of the scores, and 2 units are taken off for that: P must not pass 255.
  static OCTAVO_DEVICE float origin_of(const Scores& scores, const Rows& rows, int half,
                                       float scale) {
    const float origin = rows.block_origin[half] - G::kWeightLog2;
    if constexpr (!G::kBiased) return origin;
    return ptx::fused_multiply_add(scores.near[half] ? 0.0f : G::kBias + 2, scale, origin);
  }

  // Of eights of columns `from` to `to`: pairs of P, and its exact sums where they are wanted.
  static OCTAVO_DEVICE void exponentials(Scores& scores, Rows& rows, int from, int to) {
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      float sum[2] = {0, 0};
      OCTAVO_UNROLL
      for (int i = from; i < to; ++i) {
        const int at = i * 4 + half * 2;
        const float s[2] = {scores.s[at], scores.s[at + 1]};
        const float scale = rows.scale[half] * Scales<G>::of_keys(scores, i);
        const float origin = origin_of(scores, rows, half, scale);
        u32& pair = scores.pairs[i * 2 + half];
        if (PairCodes<G>::by_polynomial(i / 2)) {
          const float slope = scale * (1 / kReach);
          const float start =
              ptx::fused_multiply_add(origin, -1 / kReach, 1 - G::kWeightLog2 / kReach);
          pair = polynomial(ptx::fma_sat_f32(s[0], slope, start),
                            ptx::fma_sat_f32(s[1], slope, start));
          continue;
        }
        const float weights[2] = {weight_of(s[0], scale, origin), weight_of(s[1], scale, origin)};
        pair = ptx::f16x2_from_f32(weights[0], weights[1]);
        if constexpr (!C.ones) {
          sum[0] += weights[0];
          sum[1] += weights[1];
        }
      }
      if constexpr (!C.ones)
        rows.sum[half] =
            ptx::fused_multiply_add(sum[0] + sum[1], rows.add[half] * G::kWeight, rows.sum[half]);
    }
  }
  // Of a masked block: keys that nobody sees have no P.
  static OCTAVO_DEVICE void masked_exponentials(Scores& scores, Rows& rows) {
    constexpr int kEights = RowMaxima<G>::kGroupEights;
    OCTAVO_UNROLL
    for (int g = 0; g < G::kKeyScales; ++g) {
      if ((scores.hidden >> g & 1) == 0) {
        exponentials(scores, rows, g * kEights, (g + 1) * kEights);
        continue;
      }
      OCTAVO_UNROLL
      for (int i = g * kEights * 2; i < (g + 1) * kEights * 2; ++i) scores.pairs[i] = 0;
    }
  }
};

}  // namespace octavo::sm90
