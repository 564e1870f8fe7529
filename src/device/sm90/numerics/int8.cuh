// SPDX-License-Identifier: Apache-2.0
// Numerics of INT8: Q K^T and P V in integers, which add up exactly.
//
// P is unsigned 8-bit: P / 2^block_max in steps of 1/255, where block_max is the row's largest
// score in this block, in log2 units. So a block uses all 255 steps even if the row's weight is in
// another block. What a block adds to O and to the row sum is weighted by 2^(block_max - ref_max),
// and ref_max is raised only when block_max is far above it.
//
// Three times integers are read as floats by their bits, without a conversion:
//   scores   With has_biased_scores the INT32 accumulators start from the bits of 1.5 * 2^23, the
//            bias. So the product leaves the bits of a float: 1.5 * 2^23 plus the score.
//   P        exp2's result is scaled so that a step of P is FP16's smallest subnormal: a conversion
//            to FP16 leaves the step's number in the low byte.
//   P V      V is stored with an offset of 128, so P and V are unsigned. Their sums are below 2^24:
//            read as float bits, a sum is 2^-149 times its value, so promotion is one FMA.
#pragma once

#include "device/ptx/math.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/wgmma_f8.cuh"
#include "device/ptx/wgmma_s8.cuh"
#include "device/sm90/numerics/fp8_f16.cuh"
#include "device/sm90/numerics/promoted_pv.cuh"
#include "device/sm90/numerics/quantized.cuh"

namespace octavo::sm90 {

// Sums are multiplied by 2^100 on their way to O, so that O is not subnormal: a step of P is 2^-49
// in O. Exact sums of P add up floats.
inline constexpr float kPromotion = 0x1p100f, kExactSum = 0x1p-125f;
inline constexpr int kInt8SumLog2 = -49;

template <class G>
struct Int8P {
  using Accumulator = i32;
  static constexpr u32 kOneBytes = 0;  // bytes are summed by dp4a
  static_assert(255 * 255 * G::C.block_n < 1 << 24, "sums of bytes must be a float's bits");

  template <class T>
  static OCTAVO_DEVICE void mma(T& t, const u32 (&a)[4], u64 v, bool accumulate) {
    ptx::wgmma_u8(t, a, v, accumulate);
  }
  template <class Rows>
  static OCTAVO_DEVICE float promoted(float o, i32 t, const Rows& rows, int r) {
    return ptx::fused_multiply_add(ptx::float_of_bits(static_cast<u32>(t)), rows.weight[r], o);
  }
};

template <class G>
struct NumericsInt8 : PromotedPv<G, Int8P<G>>, QuantizedQk<G> {
  using Base = QuantizedQk<G>;
  using Pv = PromotedPv<G, Int8P<G>>;
  static constexpr Sm90ForwardConfig C = G::C;
  static constexpr bool kBiased = has_biased_scores(C);
  static constexpr float kBias = 12582912;
  static constexpr int kPolynomialGroups = polynomial_groups(C);
  static constexpr int kGroups = Base::kScaleGroups, kGroupN8 = Base::kGroupN8;
  static constexpr bool kExactSums = !C.sum_rounded_p;

  struct Scores {
    float s[G::kScores];
    i32 sums[G::kScores];       // as the tensor cores leave them
    u32 pairs[G::kScores / 2];  // P in the low bytes of halves, n8 * 2 + r
    typename Base::KScaleRegisters k_scales;
    float largest[kGroups][2];  // this thread's largest scores, before K's scales
    bool unbiased[2];           // rows without the bias, as their multiplier is too large
  };
  struct Rows : RowState {
    float byte_sum[2];  // of P as rounded, where `sum` is exact
    float multiplier[2];
    float block_max[2], weight[2];
  };
  struct State {
    float o[G::kORegistersWithOnes];
    typename Pv::Slices slices;
    Rows rows;
  };
  static constexpr float kPLog2 = 7.99435344f;     // 255 steps
  static constexpr float kStepLog2 = kPLog2 - 24;  // in FP16's smallest subnormals
  static constexpr float kSumLog2 = kInt8SumLog2;
  static constexpr bool kLoadsScalesEarly = kBiased;
  static constexpr bool kFillsConstants = kBiased;

  static OCTAVO_DEVICE void init_rows(Rows& rows, float scale_log2,
                                      const typename Base::RowScales& scales) {
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r) {
      rows.ref_max[r] = kLowest;
      rows.sum[r] = rows.byte_sum[r] = 0;
    }
    Base::set_multipliers(rows.multiplier, scale_log2, scales);
  }

  // --- Q K^T ------------------------------------------------------------------------------------

  static OCTAVO_DEVICE auto& accumulator(Scores& scores) { return scores.sums; }
  static OCTAVO_DEVICE void qk(Scores& scores, u32 q, u32 stage) {
    for_each_qk_step<G>(q, stage, [&](u64 a, u64 b, int step) {
      ptx::wgmma_s8(scores.sums, a, b, kBiased || step > 0);
    });
  }
  // The bias is the product of two FP8 constants, 2^9 and 1.5 * 2^9, summed 32 times: so the tensor
  // cores write it, not the threads. All rows, and all columns, are the same 128 bytes.
  static OCTAVO_DEVICE void start_accumulator_bias(Scores& scores) {
    if constexpr (kBiased) {
      ptx::pin(scores.s);
      ptx::wgmma_fence();
      const u32 a = G::smem(G::S.ones);
      ptx::wgmma_e5m2(scores.s, MatrixDescriptor{a, 0, 0, Swizzle::none}.encoded(),
                      MatrixDescriptor{a + kBiasBytes, 0, 0, Swizzle::none}.encoded(), false);
      ptx::wgmma_commit();
    }
  }
  // kPending: how many products were started since.
  template <int kPending>
  static OCTAVO_DEVICE void finish_accumulator_bias(Scores& scores) {
    if constexpr (kBiased) {
      ptx::wgmma_wait<kPending>();
      ptx::pin(scores.s);
      OCTAVO_UNROLL
      for (int i = 0; i < G::kScores; ++i)
        scores.sums[i] = static_cast<i32>(ptx::bits_of(scores.s[i]));
    }
  }
  template <int kThreads>
  static OCTAVO_DEVICE void fill_constants([[maybe_unused]] u32 thread) {
    if constexpr (kBiased) {
      fill_shared<kThreads>(G::smem(G::S.ones), kBiasBytes, thread, 0x60606060u);
      fill_shared<kThreads>(G::smem(G::S.ones) + kBiasBytes, kBiasBytes, thread, 0x62626262u);
    }
  }
  static OCTAVO_DEVICE void finish_qk(Scores& scores, u32 stage, u32 lane) {
    constexpr bool kScalesRows = C.k_scales == KScales::row;
    if (!kBiased && !kScalesRows) find_largest_sums(scores);
    OCTAVO_UNROLL
    for (int i = 0; i < G::kScores; ++i)
      scores.s[i] = kBiased ? ptx::float_of_bits(static_cast<u32>(scores.sums[i]))
                            : ptx::float_of_int(scores.sums[i]);
    if (!kBiased) ptx::pin(scores.s);  // or the compiler keeps both
    Base::multiply_k_scales(scores.s, stage, lane);
    if (kScalesRows) find_largest(scores);
    Base::read_k_scales(scores.k_scales, stage);
  }
  // This thread's largest score in each group of keys that shares a scale, from the integers, which
  // the ALU compares three at a time. Two chains, as each maximum has to wait for the one before.
  static OCTAVO_DEVICE void find_largest_sums(Scores& scores) {
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r) {
      OCTAVO_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        const i32* const s = scores.sums + g * kGroupN8 * 4 + r * 2;
        i32 chains[2] = {max_of(s[0], s[1]), max_of(s[4], s[5])};
        OCTAVO_UNROLL
        for (int i = 2; i < kGroupN8; ++i)
          chains[i % 2] = max_of(max_of(chains[i % 2], s[i * 4]), s[i * 4 + 1]);
        scores.largest[g][r] = ptx::float_of_int(max_of(chains[0], chains[1]));
      }
    }
  }
  // The same from floats, which may be scaled or masked. Biased ones are above 0, but for hidden
  // ones.
  static OCTAVO_DEVICE void find_largest(Scores& scores) {
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r) {
      OCTAVO_UNROLL
      for (int g = 0; g < kGroups; ++g)
        scores.largest[g][r] =
            kBiased ? positive_thread_max<kGroupN8>(scores.s, r, g * kGroupN8) - kBias
                    : thread_max<kGroupN8>(scores.s, r, g * kGroupN8);
    }
  }

  // --- mask -------------------------------------------------------------------------------------

  static OCTAVO_DEVICE void apply_mask(Scores& scores, const Sm90ForwardParams& p,
                                       const typename G::RowTile& tile, i32 n) {
    if constexpr (kBiased) {
      OCTAVO_UNROLL
      for (u32 r = 0; r < 2; ++r) {
        const ColumnRange seen = seen_columns<G>(p, tile, n, r);
        hide_unseen<G::kScoreN8>(scores.s, r, [&](i32 column) { return column < seen.end; });
        if (ptx::warp_any(seen.begin > 0))  // few masks have a first key
          hide_unseen<G::kScoreN8>(scores.s, r, [&](i32 column) { return column >= seen.begin; });
      }
    } else {
      mask_f32<G>(scores.s, p, tile, n);
      after_hiding(scores);
    }
  }
  // The largest score may be hidden now.
  static OCTAVO_DEVICE void after_hiding(Scores& scores) {
    if (!kBiased) find_largest(scores);
  }
  static OCTAVO_DEVICE void negate(Scores& scores) {
    OCTAVO_UNROLL
    for (float& s : scores.s) s = kBiased ? 2 * kBias - s : -s;
    if (!kBiased) find_largest(scores);
  }

  // --- softmax ----------------------------------------------------------------------------------

  // ref_max is raised to a block_max that exceeds it by more than this, in powers of two: FP32 sums
  // have room for that.
  static constexpr float kFarAboveRefMax = 16;
  // With a larger multiplier, the rounding of biased scores would be too coarse.
  static constexpr float kLargeMultiplier = 1.0f / 256;

  template <class Raised>
  static OCTAVO_DEVICE void update_max(Scores& scores, Rows& rows, float /*scale_log2*/,
                                       bool /*first*/, Raised&& raised) {
    if (kBiased) find_largest(scores);
    if (find_block_max(scores, rows)) {
      float alpha[2];
      raise_ref_max(rows, alpha);
      raised(alpha);
      if (kBiased) subtract_bias(scores);
    }
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r)
      rows.weight[r] = ptx::exp2_approx(rows.block_max[r] - rows.ref_max[r]) * kPromotion;
  }
  // Whether a row of the warp must raise its ref_max, or subtract the bias.
  static OCTAVO_DEVICE bool find_block_max(Scores& scores, Rows& rows) {
    bool any = false;
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r) {
      if (kBiased) {
        scores.unbiased[r] = rows.multiplier[r] * largest_k_scale(scores) > kLargeMultiplier;
        any = any || scores.unbiased[r];
      }
      const float thread_max =
          Base::max_over_groups(scores.k_scales, [&](int g) { return scores.largest[g][r]; });
      rows.block_max[r] = ptx::max_f32(quad_max(thread_max) * rows.multiplier[r], kLowest);
      any = any || rows.block_max[r] > rows.ref_max[r] + kFarAboveRefMax;
    }
    return ptx::warp_any(any);
  }
  static OCTAVO_DEVICE float largest_k_scale(const Scores& scores) {
    float largest = Base::k_scale_of(scores.k_scales, 0);
    OCTAVO_UNROLL
    for (int g = 1; g < kGroups; ++g)
      largest = ptx::max_f32(largest, Base::k_scale_of(scores.k_scales, g * kGroupN8));
    return largest;
  }
  static OCTAVO_DEVICE void raise_ref_max(Rows& rows, float (&alpha)[2]) {
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r) {
      const bool raises = rows.block_max[r] > rows.ref_max[r] + kFarAboveRefMax;
      const float new_max = raises ? rows.block_max[r] : rows.ref_max[r];
      alpha[r] = ptx::exp2_approx(rows.ref_max[r] - new_max);
      rows.ref_max[r] = new_max;
      rows.sum[r] *= alpha[r];
      if (kExactSums) rows.byte_sum[r] *= alpha[r];
    }
  }
  static OCTAVO_DEVICE void subtract_bias(Scores& scores) {
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float by = scores.unbiased[r] ? kBias : 0.0f;
      OCTAVO_UNROLL
      for (int i = 0; i < G::kScoreN8; ++i) {
        scores.s[i * 4 + r * 2] -= by;
        scores.s[i * 4 + r * 2 + 1] -= by;
      }
    }
  }
  // What exponents are relative to, for biased and other scores. The product of bias and multiplier
  // is rounded by up to a unit of the scores; P must not exceed 255, so 2 units are subtracted.
  static OCTAVO_DEVICE float exponent_reference(const Scores& scores, const Rows& rows, int r,
                                                float multiplier) {
    const float reference = rows.block_max[r] - kStepLog2;
    if (!kBiased) return reference;
    return ptx::fused_multiply_add(scores.unbiased[r] ? 0.0f : kBias + 2, multiplier, reference);
  }

  // 255 * 2^x of two keys, with t = 1 + x / kReach in FP16 between 0 and 1. t is 0, and P less than
  // half a step, also for hidden keys.
  //   q = ((1.518 t + 0.043) t + 1.626) t + 0.809     near the fourth root
  //   q^4 + 1024                                      an integer, as FP16 has steps of 1 from 1024
  //   on
  // For all t it is the nearest byte or its neighbour, at most 255, and monotonic in x. Its error
  // is 0.30 of a step (rms, x from 0 to -12); that of the nearest byte is 0.29.
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
  static OCTAVO_DEVICE void exp(Scores& scores, Rows& rows, float /*scale_log2*/, int from,
                                int to) {
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r) {
      float sum[2] = {0, 0};
      OCTAVO_UNROLL
      for (int i = from; i < to; ++i) {
        const float s[2] = {scores.s[i * 4 + r * 2], scores.s[i * 4 + r * 2 + 1]};
        const float multiplier = rows.multiplier[r] * Base::k_scale_of(scores.k_scales, i);
        const float reference = exponent_reference(scores, rows, r, multiplier);
        u32& pair = scores.pairs[i * 2 + r];
        if (uses_polynomial<kPolynomialGroups>(i / 2)) {
          const float slope = multiplier * (1 / kReach);
          const float start =
              ptx::fused_multiply_add(reference, -1 / kReach, 1 - kStepLog2 / kReach);
          pair = polynomial(ptx::fma_sat_f32(s[0], slope, start),
                            ptx::fma_sat_f32(s[1], slope, start));
          continue;
        }
        const float p[2] = {p_of_score(s[0], multiplier, reference),
                            p_of_score(s[1], multiplier, reference)};
        pair = ptx::f16x2_from_f32(p[0], p[1]);
        if (kExactSums) {
          sum[0] += p[0];
          sum[1] += p[1];
        }
      }
      if (kExactSums)
        rows.sum[r] =
            ptx::fused_multiply_add(sum[0] + sum[1], rows.weight[r] * kExactSum, rows.sum[r]);
    }
  }
  static OCTAVO_DEVICE void pack_step(typename G::P& p, const Scores& scores, int step) {
    OCTAVO_UNROLL
    for (int i = 0; i < 4; ++i) {
      const u32* const pairs = scores.pairs + step * 8 + i / 2 * 4 + i % 2;
      p.a[step][i] = ptx::permute_bytes(pairs[0], pairs[2], 0x6420);
    }
  }
  // Adds up the rounded P of steps [from, to), four bytes at a time.
  static OCTAVO_DEVICE void sum_p(const typename G::P& p, Rows& rows, int from, int to) {
    u32 sums[2] = {0, 0};
    OCTAVO_UNROLL
    for (int step = from; step < to; ++step) {
      OCTAVO_UNROLL
      for (int i = 0; i < 4; ++i) sums[i % 2] = ptx::add_bytes(p.a[step][i], sums[i % 2]);
    }
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r) {
      float& sum = kExactSums ? rows.byte_sum[r] : rows.sum[r];
      sum = ptx::fused_multiply_add(ptx::float_of_bits(sums[r]), rows.weight[r], sum);
    }
  }

  // --- epilogue ---------------------------------------------------------------------------------

  static OCTAVO_DEVICE float row_sum(const State&, const Rows& rows, u32 r) {
    return quad_sum(rows.sum[r]);
  }
  // V is stored with an offset of kZeroByte (config/v_layout.h), which is subtracted from the
  // quotient. O and the sum of P's bytes are rounded separately, by some 1e-5 of a step of V, or
  // 1e-4 with 1e5 keys, and a V of zeros must give zeros: so the result is rounded to 2^-11 or
  // 2^-10 of a step.
  template <int kCount>
  static OCTAVO_DEVICE void divide_bytes(float* o, u32 r, float byte_sum) {
    constexpr float kCoarse = 8192;
    const bool none = byte_sum == 0.0f;
    const float inverse = none ? 0.0f : ptx::reciprocal_approx(byte_sum);
    const float from = none ? kCoarse : kCoarse - kZeroByte;
    OCTAVO_UNROLL
    for (u32 i = 0; i < kCount / 2; ++i) {
      float& x = o[i / 2 * 4 + r * 2 + i % 2];
      x = ptx::fused_multiply_add(x, inverse, from) - kCoarse;
    }
  }
  static OCTAVO_DEVICE void normalize_row(State& state, const Rows& rows, u32 r, float sum) {
    divide_bytes<G::kORegisters>(state.o, r, kExactSums ? quad_sum(rows.byte_sum[r]) : sum);
  }
  // Splits are weighted by `sum`. If that is exact, O is first converted to the same units.
  template <class Partial>
  static OCTAVO_DEVICE Partial to_partial(const State& state) {
    Partial all;
    OCTAVO_UNROLL
    for (int i = 0; i < G::kORegisters; ++i) all.o[i] = state.o[i];
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      all.ref_max[r] = state.rows.ref_max[r];
      all.sum[r] = row_sum(state, state.rows, r);
      if (kExactSums) {
        divide_bytes<G::kORegisters>(all.o, r, quad_sum(state.rows.byte_sum[r]));
        OCTAVO_UNROLL
        for (u32 i = 0; i < G::kORegisters / 2; ++i) all.o[i / 2 * 4 + r * 2 + i % 2] *= all.sum[r];
      }
    }
    return all;
  }
  template <int kCount>
  static OCTAVO_DEVICE void normalize_partial(float* o, u32 r, float sum) {
    if constexpr (kExactSums)
      RowSums<G>::template normalize<kCount>(o, r, sum);
    else
      divide_bytes<kCount>(o, r, sum);
  }
};

}  // namespace octavo::sm90
