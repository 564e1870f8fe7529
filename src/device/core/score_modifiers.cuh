// SPDX-License-Identifier: Apache-2.0
// Applies modifiers (softcap, bias, ALiBi, mask tensor) to one score, in log2 units, and loads the
// values that they need. All forward kernels share this code.
#pragma once

#include "config/element.h"
#include "device/core/params.cuh"
#include "device/core/score_rows.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/target.cuh"
#include "device/ptx/vector_memory.cuh"

namespace octavo {

// tanh(x) to 1e-6 where |x| is not small. Large |x| end at 1 or -1: e^2x becomes infinity or 0.
OCTAVO_DEVICE float tanh_large(float x) {
  const float exponential = ptx::exp2_approx(x * (2 * kLog2E));
  return ptx::fused_multiply_add(-2.0f, ptx::reciprocal_approx(1.0f + exponential), 1.0f);
}
// tanh(x) to 1e-6 of its value. Where |x| is small, 1 - 2 / (1 + e^2x) cancels, and the series has
// an error of 17/315 x^6 < 3e-7.
OCTAVO_DEVICE float tanh_f32(float x) {
  const float square = x * x;
  const float series = ptx::fused_multiply_add(
      square, ptx::fused_multiply_add(square, 2.0f / 15.0f, -1.0f / 3.0f), 1.0f);
  return ptx::abs_f32(x) < 0.125f ? x * series : tanh_large(x);
}

// The factor of a score in the polynomial of a softcap. The score is inside its limit.
OCTAVO_DEVICE float softcap_factor(float score, const SoftcapPolynomial& p) {
  return ptx::fused_multiply_add(score * p.c[1], score, p.c[0]);
}

// softcap * tanh(score / softcap), in log2 units.
OCTAVO_DEVICE float apply_softcap(float score_log2, const ScoreModifierParams& p) {
  return p.softcap_log2 * tanh_f32(score_log2 * p.inverse_softcap_log2);
}

// Adds a bias in natural units. A finite one stays finite in log2 units: the lowest float, with
// which some callers hide keys, hides a key only if the row has greater ones. f16 is never so
// large.
template <Element kElement>
OCTAVO_DEVICE float add_bias(float score_log2, float bias) {
  if constexpr (kElement == Element::f16) {
    return ptx::fused_multiply_add(bias, kLog2E, score_log2);
  } else {
    constexpr float kLargest = 3.402823466e38f;
    const float bias_log2 = bias * kLog2E;
    const float finite = ptx::min_f32(ptx::max_f32(bias_log2, -kLargest), kLargest);
    return score_log2 +
           (ptx::abs_f32(bias) < __builtin_bit_cast(float, 0x7f800000u) ? finite : bias_log2);
  }
}

template <Element kElement>
OCTAVO_DEVICE float float_of_b16(u16 bits) {
  if constexpr (kElement == Element::bf16) return ptx::float_of_bits(u32{bits} << 16);
  float low, high;
  ptx::f32_from_f16x2(low, high, bits);
  return low;
}

// Loads of what the modifiers read. A grid that overlaps an earlier one (kOverlaps) may have
// started before that one has written it.
template <bool kOverlaps>
OCTAVO_DEVICE float load_modifier(const float* p) {
  if constexpr (kOverlaps) return ptx::float_of_bits(ptx::load_coherent_b32(p));
  return ptx::load_global_f32(p);
}

// Element `index` of a bias.
template <Element kElement, bool kOverlaps = false>
OCTAVO_DEVICE float load_bias(const void* data, i64 index) {
  if constexpr (kElement == Element::f32) {
    return load_modifier<kOverlaps>(static_cast<const float*>(data) + index);
  } else {
    const u16* const at = static_cast<const u16*>(data) + index;
    return float_of_b16<kElement>(kOverlaps ? ptx::load_coherent_b16(at)
                                            : ptx::load_global_b16(at));
  }
}

// Two neighbouring elements of a 16-bit bias.
template <Element kElement>
OCTAVO_DEVICE void bias_pair(u32 x, float& first, float& second) {
  if constexpr (kElement == Element::f16) {
    ptx::f32_from_f16x2(first, second, x);
  } else {
    first = ptx::float_of_bits(x << 16);
    second = ptx::float_of_bits(x & 0xffff0000u);
  }
}

// Elements `index` and `index` + 1, which form an aligned vector.
template <Element kElement, bool kOverlaps = false>
OCTAVO_DEVICE void load_bias_pair(const void* data, i64 index, float& first, float& second) {
  if constexpr (kElement == Element::f32) {
    const float* const at = static_cast<const float*>(data) + index;
    u32 x0, x1;
    if constexpr (kOverlaps)
      ptx::load_coherent_b64(at, x0, x1);
    else
      ptx::load_global_b64(at, x0, x1);
    first = ptx::float_of_bits(x0);
    second = ptx::float_of_bits(x1);
  } else {
    const u16* const at = static_cast<const u16*>(data) + index;
    const u32 x = kOverlaps ? ptx::load_coherent_b32(at) : ptx::load_global_b32(at);
    bias_pair<kElement>(x, first, second);
  }
}

// The slope of a head of a sequence, for scores in natural units.
template <bool kOverlaps = false>
OCTAVO_DEVICE float alibi_slope(const ScoreModifierParams& p, i32 sequence, i32 head) {
  return load_modifier<kOverlaps>(p.alibi_slopes + sequence * p.alibi_batch_stride + head);
}
// For scores in log2 units.
template <bool kOverlaps = false>
OCTAVO_DEVICE float alibi_slope_log2(const ScoreModifierParams& p, i32 sequence, i32 head) {
  return kLog2E * alibi_slope<kOverlaps>(p, sequence, head);
}
// s - slope * |distance|, where the distance is from the row's diagonal to the key. Slope and score
// are in the same units.
OCTAVO_DEVICE float apply_alibi(float score, float slope, float distance) {
  return ptx::fused_multiply_add(-slope, ptx::abs_f32(distance), score);
}

// ALiBi of row r in kN8 groups of eight columns (score_rows.cuh). `distance`: from the thread's
// first column to the row's diagonal. Distances are exact up to 2^24: `distance` is rounded once,
// and columns are constants.
template <int kN8>
OCTAVO_DEVICE void apply_alibi_row(float* s, int r, float slope, i32 distance) {
  const float first = ptx::float_of_int(distance);
  OCTAVO_UNROLL
  for (int i = 0; i < kN8; ++i) {
    OCTAVO_UNROLL
    for (int e = 0; e < 2; ++e) {
      float& score = s[i * 4 + r * 2 + e];
      score = apply_alibi(score, slope, first - static_cast<float>(i * 8 + e));
    }
  }
}

// The first element of a bias or mask for one row of a head: column 0 of the sequence's first key.
// `row` and `first_key` are relative to the tensor's first.
OCTAVO_DEVICE i64 score_row_index(const ScoreTensorParams& t, i32 batch, i32 head, i32 row,
                                  i32 first_key) {
  return batch * t.batch + head * t.head + row * t.row + first_key * t.column;
}

// A sink as one more term of a row's softmax. `ref_max` is the row's reference maximum and becomes
// the greater of it and the sink; `keep` is the factor of what was accumulated relative to the old
// one, and the result the term itself.
OCTAVO_DEVICE float sink_term(float sink_log2, float& ref_max, float& keep) {
  const float larger = ptx::max_f32(ref_max, sink_log2);
  keep = ptx::exp2_approx(ref_max - larger);
  ref_max = larger;
  return ptx::exp2_approx(sink_log2 - larger);
}

// lse_of() with a bias, which may overflow in log2 units (beyond 2.36e38): ref_max is then the
// lowest or the largest float, and so is the LSE.
OCTAVO_DEVICE float lse_with_bias(float ref_max, float sum, float sum_log2) {
  const bool overflows = sum > 0.0f && ptx::abs_f32(ref_max) >= -kLowest;
  return overflows ? ref_max : lse_of(ref_max, sum, sum_log2);
}

}  // namespace octavo
