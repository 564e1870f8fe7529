// SPDX-License-Identifier: Apache-2.0
// Softcap and ALiBi as part of the exponent of P = 2^(softcap(scale * s) - alibi - ref_max), for
// 16-bit kernels without a bias. Scores stay raw until then, so that the work runs beside the exps
// and the maximum need not wait for it: softcap is monotonic, and ALiBi has a bound in each block.
#pragma once

#include "device/core/score_modifiers.cuh"
#include "device/core/score_rows.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/thread.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/softmax.cuh"

namespace octavo::sm90 {

constexpr bool fuses_modifiers(const Sm90ForwardConfig& c) {
  return (c.modifiers.softcap || c.modifiers.alibi) && !c.modifiers.bias;
}

// The score alone decides which formula of softcap it takes.
OCTAVO_DEVICE bool is_large(float s, const SoftcapPolynomial& series) {
  return ptx::abs_f32(s) > series.limit;
}
// Whether some of the scores in groups [from, to) of eight columns is large. The bits of floats
// that are not negative order as integers do, and the ALU has a three-way integer maximum.
OCTAVO_DEVICE bool has_large(const float* s, int from, int to, const SoftcapPolynomial& series) {
  u32 most[2] = {0, 0};
  OCTAVO_UNROLL
  for (int i = from * 4; i < to * 4; i += 4) {
    const float pairs[2] = {ptx::max_f32(ptx::abs_f32(s[i]), ptx::abs_f32(s[i + 1])),
                            ptx::max_f32(ptx::abs_f32(s[i + 2]), ptx::abs_f32(s[i + 3]))};
    u32& chain = most[i / 4 % 2];
    chain = max_of(max_of(chain, ptx::bits_of(pairs[0])), ptx::bits_of(pairs[1]));
  }
  return max_of(most[0], most[1]) > ptx::bits_of(series.limit);
}
// softcap(scale * s) + addition, in log2 units; -infinity, a hidden score, stays as it is.
OCTAVO_DEVICE float capped_plus(float s, const ScoreModifierParams& m, float scale_log2,
                                float addition) {
  const float small = ptx::fused_multiply_add(s, softcap_factor(s, m.softcap_series), addition);
  const float exponential =
      ptx::exp2_approx(s * (scale_log2 * m.inverse_softcap_log2 * (2 * kLog2E)));
  const float tanh_large = ptx::fused_multiply_add(
      -2 * m.softcap_log2, ptx::reciprocal_approx(1.0f + exponential), m.softcap_log2 + addition);
  const float large =
      m.softcap_log2 != 0 ? tanh_large : ptx::fused_multiply_add(s, scale_log2, addition);
  const float capped = is_large(s, m.softcap_series) ? large : small;
  return s == -kInfinity ? s : capped;
}

// The modifiers of a thread's scores of one block.
template <class G>
struct FusedModifiers {
  static constexpr Sm90ForwardConfig C = G::C;
  static constexpr bool kSoftcap = C.modifiers.softcap, kAlibi = C.modifiers.alibi;

  const ScoreModifierParams* m;
  float scale_log2;
  // ALiBi, as in ScoreModifier::Slopes, but in log2 units.
  float slope[2], distance[2];
  bool left;
  bool linear;  // of the whole warp: ALiBi is linear in the column

  // The ALiBi of the first column plus `addition`, and what each column adds, if ALiBi is linear.
  OCTAVO_DEVICE float column_slope(int r) const { return left ? slope[r] : -slope[r]; }
  OCTAVO_DEVICE float first_column(int r, float addition) const {
    return ptx::fused_multiply_add(-column_slope(r), distance[r], addition);
  }
  OCTAVO_DEVICE float linear_alibi(int r, int column, float first) const {
    return ptx::fused_multiply_add(column_slope(r), static_cast<float>(column), first);
  }
  OCTAVO_DEVICE float alibi(int r, int column, float addition) const {
    if (kSoftcap && linear) return linear_alibi(r, column, first_column(r, addition));
    return apply_alibi(addition, slope[r], distance[r] - static_cast<float>(column));
  }

  // With softcap no exponent exceeds softcap_log2. In bf16, whose range is that of floats, ref_max
  // can then be the same for all rows: no maximum is needed. P is at least 2^kLeastPLog2, far from
  // underflow, and at most 2^8 unless the softcap needs more: up to 2^40. O is divided by the sum
  // of the rounded P, because the largest P of a row, which is 1 elsewhere, is rounded here.
  static constexpr float kHeadroomLog2 = 8, kLeastPLog2 = -112, kMostFixedLog2 = 76;
  OCTAVO_DEVICE bool has_fixed_ref_max() const {
    return kSoftcap && !kAlibi && C.sum_rounded_p && C.v_element == Element::bf16 &&
           m->softcap_log2 > 0 && m->softcap_log2 <= kMostFixedLog2;
  }
  OCTAVO_DEVICE float fixed_ref_max() const {
    return ptx::min_f32(m->softcap_log2 - kHeadroomLog2, -m->softcap_log2 - kLeastPLog2);
  }

  // No exponent of a row whose scores are at most `largest`, or 0, exceeds this. With ALiBi the
  // exponents are rounded otherwise, so their rounding errors are added.
  OCTAVO_DEVICE float most_exponent(int r, float largest) const {
    constexpr float kRounding = 0x1p-21f;
    if (!kAlibi) {
      const float most = largest * scale_log2;
      return m->softcap_log2 != 0 ? ptx::min_f32(most, m->softcap_log2) : most;
    }
    constexpr int kLastColumn = C.block_n - 7;
    const float first = first_column(r, 0);
    const float nearest = ptx::max_f32(first, linear_alibi(r, kLastColumn, first));
    const float rounded = ptx::fused_multiply_add(ptx::abs_f32(nearest), kRounding, nearest);
    const float most = ptx::fused_multiply_add(largest, scale_log2 * (1 + kRounding), rounded);
    return linear ? most : kInfinity;
  }
  // All scores in groups [from, to) of eight columns may take the short code: no score is large,
  // and ALiBi is linear.
  OCTAVO_DEVICE bool are_simple(const float* s, int from, int to) const {
    if (!kSoftcap) return linear;
    return linear & !ptx::warp_any(has_large(s, from, to, m->softcap_series));
  }

  OCTAVO_DEVICE float small_exponent(float s, float addition) const {
    const float factor = kSoftcap ? softcap_factor(s, m->softcap_series) : scale_log2;
    return ptx::fused_multiply_add(s, factor, addition);
  }
  // The exponent of a score in a column, plus `addition`. kSmall: the score is not large.
  template <bool kSmall>
  OCTAVO_DEVICE float exponent(float s, int r, int column, float addition) const {
    if (kAlibi) addition = alibi(r, column, addition);
    return kSoftcap && !kSmall ? capped_plus(s, *m, scale_log2, addition)
                               : small_exponent(s, addition);
  }
  // The same if are_simple(). `first`: the addition, with the ALiBi of the first column.
  OCTAVO_DEVICE float simple_exponent(float s, int r, int column, float first) const {
    return small_exponent(s, kAlibi ? linear_alibi(r, column, first) : first);
  }

  // Calls use(i, exponent) for registers i of the scores of row r, in groups [from, to) of eight
  // columns. A few groups at a time take the code for large scores, if the warp has any there: at
  // once they would need too many registers.
  template <class Use>
  OCTAVO_DEVICE void for_each_exponent(const float* s, int r, float addition, int from, int to,
                                       Use&& use) const {
    constexpr int kAtOnce = 2;
    OCTAVO_UNROLL
    for (int first = from; first < to; first += kAtOnce) {
      const int end = min_of(first + kAtOnce, to);
      bool any_large = false;
      OCTAVO_UNROLL
      for (int i = first * 2; kSoftcap && i < end * 2; ++i)
        any_large |= is_large(s[register_of(i, r)], m->softcap_series);
      if (kSoftcap && ptx::warp_any(any_large))
        visit<false>(s, r, addition, first, end, use);
      else
        visit<true>(s, r, addition, first, end, use);
    }
  }
  // The register of a row's i-th score.
  static OCTAVO_DEVICE constexpr int register_of(int i, int r) { return i / 2 * 4 + r * 2 + i % 2; }
  template <bool kSmall, class Use>
  OCTAVO_DEVICE void visit(const float* s, int r, float addition, int from, int to,
                           Use& use) const {
    OCTAVO_UNROLL
    for (int i = from * 2; i < to * 2; ++i) {
      const int at = register_of(i, r);
      use(at, exponent<kSmall>(s[at], r, i / 2 * 8 + i % 2, addition));
    }
  }
};

}  // namespace octavo::sm90
