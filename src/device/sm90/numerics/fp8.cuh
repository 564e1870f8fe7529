// SPDX-License-Identifier: Apache-2.0
// Numerics of FP8 with FP32 scores: P is E4M3 and promoted. numerics/fp8_f16.cuh has FP16 scores.
#pragma once

#include "device/ptx/wgmma_f8.cuh"
#include "device/sm90/numerics/promoted_pv.cuh"
#include "device/sm90/numerics/quantized.cuh"

namespace octavo::sm90 {

// Over the four lanes that share a row.
OCTAVO_DEVICE float quad_min(float x) {
  const float of_two = ptx::min_f32(x, ptx::shuffle_xor(x, 1));
  return ptx::min_f32(of_two, ptx::shuffle_xor(of_two, 2));
}

// P is E4M3 for any V: E5M2 would have one mantissa bit less.
template <class G>
struct Fp8P {
  using Accumulator = float;
  static constexpr Element kV = G::C.v_element;
  static constexpr u32 kOneBytes = kV == Element::e4m3 ? 0x38383838u : 0x3c3c3c3cu;

  template <class T>
  static OCTAVO_DEVICE void mma(T& t, const u32 (&a)[4], u64 v, bool accumulate) {
    if constexpr (kV == Element::e4m3)
      ptx::wgmma_e4m3(t, a, v, accumulate);
    else
      ptx::wgmma_e4m3_e5m2(t, a, v, accumulate);
  }
  template <class Rows>
  static OCTAVO_DEVICE float promoted(float o, float t, const Rows&, int /*r*/) {
    return o + t;
  }
};

// E4M3 ends at 448. P is scaled by 2^6 and may grow to 2^2, which leaves a factor of 2^0.8 for
// roundings; the smallest normal P is then 2^-12.
inline constexpr int kHeadroomFp8Log2 = 2, kPFp8Log2 = 8 - kHeadroomFp8Log2;

// The largest score of a row may be far above the others, as with an attention sink. Its height, in
// powers of two, is its distance to a quarter of the block's keys: those of the lane with the
// smallest maximum. Few scores will exceed such a score, so from kAlone on the row gives up its
// headroom, which leaves the other keys two more powers of two. From kFarAbove on many of them are
// subnormal in E4M3 even so.
inline constexpr float kAlone = 6, kFarAbove = 9.5f;
OCTAVO_DEVICE float height_above_others(float thread_max, float row_max, float multiplier) {
  const float least = quad_min(thread_max);
  return least > -kInfinity ? (row_max - least) * multiplier : 0;
}

template <class G>
struct Fp8Qk : QuantizedF32Qk<G> {
  static OCTAVO_DEVICE float headroom_used(float thread_max, float row_max, float multiplier) {
    return height_above_others(thread_max, row_max, multiplier) > kAlone ? kHeadroomFp8Log2 : 0;
  }
};

template <class G>
struct NumericsFp8 : PromotedPv<G, Fp8P<G>>,
                     RowSums<G>,
                     Fp8Qk<G>,
                     F32Softmax<G, Fp8Qk<G>, kHeadroomFp8Log2, kPFp8Log2> {
  using Scores = typename Fp8Qk<G>::Scores;
  using Rows = typename Fp8Qk<G>::Rows;
  struct State {
    float o[G::kORegistersWithOnes];
    typename PromotedPv<G, Fp8P<G>>::Slices slices;
    Rows rows;
  };
  static constexpr float kPLog2 = kPFp8Log2;
  static constexpr bool kLoadsScalesEarly = false;

  // A register holds two pairs, of keys that are neighbours in V's layout (config/v_layout.h).
  static OCTAVO_DEVICE void pack_step(typename G::P& p, const Scores& scores, int step) {
    OCTAVO_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float* const s = scores.s + step * 16 + i / 2 * 8 + i % 2 * 2;
      p.a[step][i] = ptx::e4m3x2_from_f32(s[0], s[1]) | ptx::e4m3x2_from_f32(s[4], s[5]) << 16;
    }
  }
  static OCTAVO_DEVICE void sum_p(const typename G::P&, Rows&, int, int) {}
};

}  // namespace octavo::sm90
