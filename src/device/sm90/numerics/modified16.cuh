// SPDX-License-Identifier: Apache-2.0
// Numerics of FP16 and BF16 with softcap or ALiBi in the exponent (fused_modifiers.cuh). Scores are
// raw; ref_max and the thresholds of the rows are those of the exponents.
#pragma once

#include "device/sm90/fused_modifiers.cuh"
#include "device/sm90/numerics/bits16.cuh"

namespace octavo::sm90 {

template <class G>
struct ModifiedQk16 : Qk16<G> {
  using Rows = typename Qk16<G>::Rows;
  using Largest = typename Qk16<G>::Largest;
  static constexpr Sm90ForwardConfig C = G::C;
  struct Scores : Qk16<G>::Scores {
    FusedModifiers<G> modifiers;  // of the current block
  };

  static OCTAVO_DEVICE float multiplier(const Rows&, int /*r*/, float, float) { return 1; }

  static OCTAVO_DEVICE bool exceeds_threshold(const Scores& scores, const Rows& rows, Largest&,
                                              bool first) {
    if (first) return true;
    bool exceeds = false;
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float largest = ptx::max_f32(positive_thread_max<G::kScoreN8>(scores.s, r, 0), 0);
      exceeds |= !(scores.modifiers.most_exponent(r, largest) < rows.threshold[r]);
    }
    return ptx::warp_any(exceeds);
  }
  static OCTAVO_DEVICE float thread_max_of(const Scores& scores, const Largest&, int r) {
    if (!C.modifiers.alibi)
      return scores.modifiers.template exponent<false>(thread_max<G::kScoreN8>(scores.s, r), r, 0,
                                                       0);
    float most = -kInfinity;
    scores.modifiers.for_each_exponent(scores.s, r, 0, 0, G::kScoreN8, [&](int, float exponent) {
      most = ptx::max_f32(most, exponent);
    });
    return most;
  }
};

template <class G>
struct NumericsModified16 : NumericsPv16<G, ModifiedQk16<G>> {
  using Scores = typename ModifiedQk16<G>::Scores;
  using Rows = typename ModifiedQk16<G>::Rows;
  static constexpr Sm90ForwardConfig C = G::C;

  // As F32Softmax::update_max.
  template <class Raised>
  static OCTAVO_DEVICE void update_max(Scores& scores, Rows& rows, float scale_log2, bool first,
                                       Raised&& raised) {
    if (scores.modifiers.has_fixed_ref_max()) {
      OCTAVO_UNROLL
      for (float& ref_max : rows.ref_max) ref_max = scores.modifiers.fixed_ref_max();
    } else {
      F32Softmax<G, ModifiedQk16<G>, kHeadroom16Log2, 0>::update_max(scores, rows, scale_log2,
                                                                     first, raised);
    }
  }
  // As F32Softmax::exp.
  static OCTAVO_DEVICE void exp(Scores& scores, Rows& rows, float /*scale_log2*/, int from,
                                int to) {
    const FusedModifiers<G>& modifiers = scores.modifiers;
    float sum[2][2] = {};
    const auto set_p = [&](int i, float exponent) {
      scores.s[i] = ptx::exp2_approx(exponent);
      if (!C.sum_rounded_p) sum[i / 2 % 2][i % 2] += scores.s[i];
    };
    if (modifiers.are_simple(scores.s, from, to)) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const float first =
            C.modifiers.alibi ? modifiers.first_column(r, -rows.ref_max[r]) : -rows.ref_max[r];
        OCTAVO_UNROLL
        for (int i = from * 2; i < to * 2; ++i) {
          const int at = modifiers.register_of(i, r);
          set_p(at, modifiers.simple_exponent(scores.s[at], r, i / 2 * 8 + i % 2, first));
        }
      }
    } else {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r)
        modifiers.for_each_exponent(scores.s, r, -rows.ref_max[r], from, to, set_p);
    }
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r)
      if (!C.sum_rounded_p) rows.sum[r] += sum[r][0] + sum[r][1];
  }
};

}  // namespace octavo::sm90
