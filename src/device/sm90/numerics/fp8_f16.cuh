// SPDX-License-Identifier: Apache-2.0
// Numerics of FP8 with FP16 scores: half the score registers, and a softmax on pairs of keys.
//
// A register holds columns 2i and 2i + 1 of one row. P's exponent is fma(s, multiplier, offset) in
// FP16, with one rounding. The offset is rounded to FP16, so sums and outputs must be relative to a
// ref_max that is rounded likewise.
//
// P comes from the exponent in one of three ways: the exp unit; a polynomial on the FMA pipe, for
// some groups of 16 keys, which relieves it; or with ScoreType::f16_fast a linear approximation for
// all.
#pragma once

#include "device/ptx/math.cuh"
#include "device/ptx/thread.cuh"
#include "device/sm90/numerics/fp8.cuh"

namespace octavo::sm90 {

// E4M3 bits of 2^x for pairs x of FP16, in the low byte of each half.
struct E4m3Exp {
  // E4M3 bits are nearly linear in log2: between powers of two the value runs along a chord of 2^x.
  // So 8 (x + 7 - 0.057) are the bits of 2^x, if not the nearest ones, and need no exp: the shift
  // halves the largest error. The argument is (x + kLinearShift) / 16; adding 1024 leaves the
  // integer in the low byte.
  static constexpr float kLinearShift = 6.943f;
  static OCTAVO_DEVICE u32 linear(u32 x) {
    constexpr u32 k128 = 0x58005800, k1024 = 0x64006400;
    return ptx::fma_f16x2(x, k128, k1024);
  }

  // With y = x + 7 the bits of 2^x are 8 (y - c), where c = 1 + f - 2^f for the fraction f of y: at
  // most 0.086, and near a parabola of f.
  //   v = 1 - (y + 1/32) / 32   FP16 between 1/2 and 1, with a fraction of y in its low six bits;
  //                             held at 1 where the bits are 0: for keys that are not seen, and for
  //                             what E4M3 has subnormals for
  //   e = 3.8828 g - 1.9990     g: v without the bits before that fraction, 1/2 and more
  //   1279 - 256 (v - e^2)      1024 and the bits, as FP16 has steps of 1 there
  // 1/32 makes up for 1279, which should be 1279.3. P is off from 2^x by 2.80e-2 (rms; the nearest
  // E4M3 by 2.64e-2), and by 1.2e-3 in the mean. NaN becomes 0 in v, and in the end the byte 0x7f:
  // NaN again.
  static OCTAVO_DEVICE u32 polynomial(u32 x) {
    constexpr u32 kMinus1By32 = 0xa800a800, kStart = 0x3a3e3a3e;  // 25/32 - 1/1024
    constexpr u32 kFraction = 0x383f383f;
    constexpr u32 kFactor = 0x43c443c4, kShift = 0xbfffbfff;
    constexpr u32 kMinus256 = 0xdc00dc00, k1279 = 0x64ff64ff;
    const u32 v = ptx::fma_sat_f16x2(x, kMinus1By32, kStart);
    const u32 e = ptx::fma_f16x2(v & kFraction, kFactor, kShift);
    return ptx::fma_f16x2(ptx::fnma_f16x2(e, e, v), kMinus256, k1279);
  }

  // The amount to add to x so that its polynomial gives the bits of a subnormal, 2^(y + 2) where y
  // is below 1: log2(1 + 2^(y - 1)) shall stand for y, here by a parabola (within 0.03 from -3 on).
  // Above, nothing is added; below, and to keys that are not seen, a number that leaves them at 0.
  static OCTAVO_DEVICE u32 subnormal_lift(u32 x) {
    constexpr u32 kMinus7 = 0xc700c700, kMinus3 = 0xc200c200, kMinus1 = 0xbc00bc00;
    constexpr u32 kSquare = 0x2b1a2b1a, kMinusLinear = 0xb541b541, kConstant = 0x38c238c2;
    const u32 y = ptx::max_f16x2(ptx::sub_f16x2(x, kMinus7), kMinus3);
    const u32 u = ptx::max_f16x2(y ^ 0x80008000u, kMinus1);  // -y, or -1
    const u32 lifted = ptx::fma_f16x2(ptx::fma_f16x2(u, kSquare, kMinusLinear), u, kConstant);
    return ptx::sub_f16x2(ptx::max_f16x2(y, lifted), y);
  }
};

// Which groups of 16 keys compute P by a polynomial: kOfFour of every four.
template <int kOfFour>
OCTAVO_DEVICE constexpr bool uses_polynomial(int group) {
  return (group + 1) * kOfFour / 4 != group * kOfFour / 4;
}

OCTAVO_DEVICE float half_of(u32 pair, int r) {
  float low, high;
  ptx::f32_from_f16x2(low, high, pair);
  return r == 0 ? low : high;
}
// One half of a pair, twice.
OCTAVO_DEVICE u32 half_twice(u32 pair, int r) {
  return ptx::permute_bytes(pair, 0, r == 0 ? 0x1010 : 0x3232);
}

template <class G>
struct NumericsFp8F16 : PromotedPv<G, Fp8P<G>>, RowSums<G>, QuantizedQk<G> {
  using Base = QuantizedQk<G>;
  static constexpr Sm90ForwardConfig C = G::C;
  static constexpr bool kFast = C.scores == ScoreType::f16_fast;
  static constexpr int kPolynomialGroups = polynomial_groups(C);
  static_assert(scaled_keys(C) == 0, "FP16 scores take one scale of K for each head");
  static_assert(!kFast || C.sum_rounded_p, "the row sum adds up P as it was rounded");
  static constexpr int kPairs = G::kScores / 2;

  struct Scores {
    u32 pairs[kPairs];  // n8 * 2 + r
  };
  struct Rows : RowState {
    float multiplier[2];
    u32 thresholds, multipliers, offsets;  // of both rows, in FP16
  };
  struct State {
    float o[G::kORegistersWithOnes];
    typename PromotedPv<G, Fp8P<G>>::Slices slices;
    Rows rows;
  };
  static constexpr float kPLog2 = kPFp8Log2;
  static constexpr bool kLoadsScalesEarly = true;
  static constexpr float kExponentUnit = kFast ? 16 : 1;  // exponents are in units of this

  // --- row state --------------------------------------------------------------------------------

  static OCTAVO_DEVICE float offset_of(float ref_max) {
    const float exponent = kPLog2 - ref_max;
    return kFast ? (exponent + E4m3Exp::kLinearShift) / kExponentUnit : exponent;
  }
  static OCTAVO_DEVICE float ref_max_of(float offset) {
    return kPLog2 - (kFast ? offset * kExponentUnit - E4m3Exp::kLinearShift : offset);
  }
  // A row is out of range if its ref_max or multiplier is too large for FP16 arithmetic, and before
  // its first key: fma(s, multiplier, offset) would then be too coarse, or infinite. Its threshold
  // is -infinity, so that every block is examined, and the largest score is subtracted from its
  // scores before they are multiplied.
  static constexpr float kMaxInRange = 512;
  static OCTAVO_DEVICE bool is_out_of_range(const Rows& rows, int r) {
    return half_of(rows.thresholds, r) == -kInfinity;
  }
  static OCTAVO_DEVICE void round_ref_max(float& ref_max, float& threshold, float multiplier,
                                          float out_of_range) {
    constexpr float kLargestF16 = 65504;
    const float offset = offset_of(ref_max);
    const float rounded = ref_max_of(half_of(ptx::f16x2_from_f32(offset, offset), 0));
    const bool in_range = ptx::abs_f32(rounded) < kMaxInRange && multiplier < kMaxInRange;
    ref_max = in_range ? rounded : out_of_range;
    threshold = in_range ? ptx::max_f32(threshold, -kLargestF16) : -kInfinity;
  }
  // The last bit of a threshold says whether many of the row's keys are subnormal in E4M3; it moves
  // the threshold by a thousandth or less.
  static constexpr u32 kSubnormalBits = 0x00010001;
  static OCTAVO_DEVICE bool has_subnormals(const Rows& rows) {
    return kPolynomialGroups > 0 && (rows.thresholds & kSubnormalBits) != 0;
  }

  static OCTAVO_DEVICE void init_rows(Rows& rows, float scale_log2,
                                      const typename Base::RowScales& scales) {
    const float offset = offset_of(0);
    rows.thresholds = ptx::f16x2_from_f32(-kInfinity, -kInfinity);
    rows.offsets = ptx::f16x2_from_f32(offset, offset);
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r) {
      rows.ref_max[r] = kLowest;
      rows.sum[r] = 0;
    }
    Base::set_multipliers(rows.multiplier, scale_log2, scales);
    rows.multipliers = ptx::f16x2_from_f32(in_f16(rows.multiplier[0]), in_f16(rows.multiplier[1]));
  }
  // Neither infinite nor 0, so that the score -infinity of a hidden key stays -infinity.
  static OCTAVO_DEVICE float in_f16(float multiplier) {
    constexpr float kSmallest = 5.9604645e-8f, kLargest = 65504;
    return ptx::min_f32(ptx::max_f32(multiplier / kExponentUnit, kSmallest), kLargest);
  }
  // The rounded multiplier that the exponents use, or the exact one, which LSE needs.
  static OCTAVO_DEVICE float multiplier_of(const Rows& rows, int r) {
    return C.sum_rounded_p ? half_of(rows.multipliers, r) * kExponentUnit : rows.multiplier[r];
  }

  // --- Q K^T and mask ---------------------------------------------------------------------------

  static OCTAVO_DEVICE auto& accumulator(Scores& scores) { return scores.pairs; }
  static OCTAVO_DEVICE void qk(Scores& scores, u32 q, u32 stage) {
    for_each_qk_step<G>(q, stage, [&](u64 a, u64 b, int step) {
      if constexpr (C.element == Element::e4m3)
        ptx::wgmma_e4m3(scores.pairs, a, b, step > 0);
      else
        ptx::wgmma_e5m2(scores.pairs, a, b, step > 0);
    });
  }
  static OCTAVO_DEVICE void start_accumulator_bias(Scores&) {}
  template <int kPending>
  static OCTAVO_DEVICE void finish_accumulator_bias(Scores&) {}
  static OCTAVO_DEVICE void finish_qk(Scores&, u32 /*stage*/, u32 /*lane*/) {}

  static OCTAVO_DEVICE void apply_mask(Scores& scores, const Sm90ForwardParams& p,
                                       const typename G::RowTile& tile, i32 n) {
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      const ColumnRange seen = seen_columns<G>(p, tile, n, r);
      hide(scores, r, [&](int column) { return bits_from(seen.end - column); });
      // Few masks have a first key.
      if (ptx::warp_any(seen.begin > 0))
        hide(scores, r, [&](int column) { return ~bits_from(seen.begin - column); });
    }
  }
  // hidden(column): the bits of a pair, from that column on, that are not seen.
  template <class Hidden>
  static OCTAVO_DEVICE void hide(Scores& scores, u32 r, Hidden&& hidden) {
    OCTAVO_UNROLL
    for (int i = 0; i < G::kScoreN8; ++i) {
      u32& pair = scores.pairs[i * 2 + r];
      const u32 bits = hidden(i * 8);
      pair = (pair & ~bits) | (0xfc00fc00u & bits);
    }
  }
  // The bits of the columns of a pair from number `from` on: all, the upper half or none.
  static OCTAVO_DEVICE u32 bits_from(i32 from) {
    return ptx::shift_left(0xffffffffu, static_cast<u32>(max_of(from * 16, 0)));
  }
  static OCTAVO_DEVICE void negate(Scores& scores) {
    OCTAVO_UNROLL
    for (u32& pair : scores.pairs) pair ^= 0x80008000u;
  }

  // --- softmax ----------------------------------------------------------------------------------

  // This thread's largest scores of even and of odd columns.
  static OCTAVO_DEVICE u32 thread_max_pair(const Scores& scores, int r) {
    u32 pair = scores.pairs[r];
    OCTAVO_UNROLL
    for (int i = 1; i < G::kScoreN8; ++i) pair = ptx::max_f16x2(pair, scores.pairs[i * 2 + r]);
    return pair;
  }
  template <class Raised>
  static OCTAVO_DEVICE void update_max(Scores& scores, Rows& rows, float /*scale_log2*/,
                                       bool /*first*/, Raised&& raised) {
    const u32 of_row[2] = {thread_max_pair(scores, 0), thread_max_pair(scores, 1)};
    const u32 largest = ptx::max_f16x2(ptx::permute_bytes(of_row[0], of_row[1], 0x5410),
                                       ptx::permute_bytes(of_row[0], of_row[1], 0x7632));
    if (!ptx::warp_any(ptx::any_ge_f16x2(largest, rows.thresholds) || has_subnormals(rows))) return;
    float alpha[2];
    raise_ref_max(rows, largest, alpha);
    raised(alpha);
    move_scores(scores, rows);
  }
  // As F32Softmax::update_max, with the row state in FP16.
  static OCTAVO_DEVICE void raise_ref_max(Rows& rows, u32 largest, float (&alpha)[2]) {
    float thresholds[2], offsets[2];
    u32 raised = 0, subnormal = 0;  // halves of all ones, and last bits
    ptx::pin(rows.multipliers);     // or the compiler keeps values derived from them
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float thread_max = half_of(largest, r);
      const float row_max = quad_max(thread_max);
      const float multiplier = multiplier_of(rows, r);
      const bool raises = row_max > -kInfinity && row_max >= half_of(rows.thresholds, r);
      const float height = height_above_others(thread_max, row_max, multiplier);
      const float headroom_used = height > kAlone ? kHeadroomFp8Log2 : 0;
      const float largest_so_far = ptx::max_f32(rows.ref_max[r], row_max * multiplier);
      float new_max = largest_so_far - headroom_used;
      float threshold =
          row_max + (kHeadroomFp8Log2 - headroom_used) * ptx::reciprocal_approx(multiplier);
      round_ref_max(new_max, threshold, multiplier, largest_so_far);
      const float raised_alpha = ptx::exp2_approx(rows.ref_max[r] - new_max);
      alpha[r] = raises ? raised_alpha : 1.0f;
      rows.ref_max[r] = raises ? new_max : rows.ref_max[r];
      const bool out_of_range = threshold == -kInfinity;
      thresholds[r] = threshold;
      offsets[r] = offset_of(out_of_range ? 0 : new_max);
      raised |= raises ? 0xffffu << 16 * r : 0;
      subnormal |= height > kFarAbove && !out_of_range ? 1u << 16 * r : 0;
      if (!C.sum_rounded_p) rows.sum[r] *= alpha[r];
    }
    const u32 marked =
        (ptx::f16x2_from_f32(thresholds[0], thresholds[1]) & ~kSubnormalBits) | subnormal;
    const u32 rounded = ptx::f16x2_from_f32(offsets[0], offsets[1]);
    rows.thresholds = (marked & raised) | (rows.thresholds & ~raised);
    rows.offsets = (rounded & raised) | (rows.offsets & ~raised);
  }
  // Subtracts the largest score, or lifts subnormals: few rows need either.
  static OCTAVO_DEVICE void move_scores(Scores& scores, const Rows& rows) {
    const bool out_of_range = is_out_of_range(rows, 0) || is_out_of_range(rows, 1);
    if (!ptx::warp_any(out_of_range || has_subnormals(rows))) return;
    if (ptx::warp_any(out_of_range)) subtract_largest(scores, rows);
    if (kPolynomialGroups > 0 && ptx::warp_any(has_subnormals(rows))) lift_subnormals(scores, rows);
  }
  static OCTAVO_DEVICE void subtract_largest(Scores& scores, const Rows& rows) {
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r) {
      // Bit by bit the score that ref_max was computed from.
      const float largest = rows.ref_max[r] * ptx::reciprocal_approx(multiplier_of(rows, r));
      const float by = is_out_of_range(rows, r) && rows.ref_max[r] > kLowest ? largest : 0.0f;
      OCTAVO_UNROLL
      for (int i = 0; i < G::kScoreN8; ++i) {
        u32& pair = scores.pairs[i * 2 + r];
        pair = ptx::sub_f16x2(pair, ptx::f16x2_from_f32(by, by));
      }
    }
  }
  // The polynomial has no subnormals: scores of such keys are moved to where it finds their bits.
  // Each row decides for itself here too.
  static OCTAVO_DEVICE void lift_subnormals(Scores& scores, const Rows& rows) {
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r) {
      if ((half_twice(rows.thresholds, r) & kSubnormalBits) == 0) continue;
      const u32 multiplier = half_twice(rows.multipliers, r), offset = half_twice(rows.offsets, r);
      const float inverse = ptx::reciprocal_approx(half_of(rows.multipliers, r));
      const u32 back = ptx::f16x2_from_f32(inverse, inverse);
      OCTAVO_UNROLL
      for (int i = 0; i < G::kScoreN8; ++i) {
        u32& pair = scores.pairs[i * 2 + r];
        if (uses_polynomial<kPolynomialGroups>(i / 2))
          pair = ptx::fma_f16x2(E4m3Exp::subnormal_lift(ptx::fma_f16x2(pair, multiplier, offset)),
                                back, pair);
      }
    }
  }
  static OCTAVO_DEVICE void exp(Scores& scores, Rows& rows, float /*scale_log2*/, int from,
                                int to) {
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r) {
      const u32 multiplier = half_twice(rows.multipliers, r), offset = half_twice(rows.offsets, r);
      OCTAVO_UNROLL
      for (int i = from; i < to; ++i) {
        u32& pair = scores.pairs[i * 2 + r];
        if (kFast)
          pair = E4m3Exp::linear(ptx::fma_sat_f16x2(pair, multiplier, offset));
        else if (uses_polynomial<kPolynomialGroups>(i / 2))
          pair = E4m3Exp::polynomial(ptx::fma_f16x2(pair, multiplier, offset));
        else
          pair = ptx::exp2_approx_f16x2(ptx::fma_f16x2(pair, multiplier, offset));
      }
    }
    if (!C.sum_rounded_p) sum_exact(scores, rows, from, to);
  }
  static OCTAVO_DEVICE void sum_exact(const Scores& scores, Rows& rows, int from, int to) {
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r) {
      float sum[2] = {0, 0};
      OCTAVO_UNROLL
      for (int i = from; i < to; ++i) {
        float even, odd;
        ptx::f32_from_f16x2(even, odd, scores.pairs[i * 2 + r]);
        sum[0] += even;
        sum[1] += odd;
      }
      rows.sum[r] += sum[0] + sum[1];
    }
  }
  static OCTAVO_DEVICE void pack_step(typename G::P& p, const Scores& scores, int step) {
    OCTAVO_UNROLL
    for (int i = 0; i < 4; ++i) {
      const u32* const pairs = scores.pairs + step * 8 + i / 2 * 4 + i % 2;
      const bool are_bytes = kFast || uses_polynomial<kPolynomialGroups>(step * 2 + i / 2);
      p.a[step][i] = are_bytes ? ptx::permute_bytes(pairs[0], pairs[2], 0x6420)
                               : ptx::e4m3x2_from_f16x2(pairs[0]) | ptx::e4m3x2_from_f16x2(pairs[2])
                                                                        << 16;
    }
  }
  static OCTAVO_DEVICE void sum_p(const typename G::P&, Rows&, int, int) {}
};

}  // namespace octavo::sm90
