// Online softmax on one warpgroup's scores: a thread has two rows, and of every eight columns two.
#pragma once

#include "device/ptx/thread.cuh"
#include "device/ptx/wgmma.cuh"
#include "device/sm90/byte_codes.cuh"
#include "device/sm90/byte_rows.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/half_rows.cuh"
#include "device/sm90/pair_codes.cuh"
#include "device/sm90/row_maxima.cuh"
#include "device/sm90/scales.cuh"

namespace octavo::sm90 {

template <class G>
struct Softmax {
  using Scores = typename G::Scores;
  using State = typename G::State;
  using Rows = typename G::Rows;
  using Place = typename G::Place;
  using Halves = HalfRows<G>;
  using Maxima = RowMaxima<G>;
  static constexpr Sm90Forward C = G::C;

  // Whether a row of the warp may have to move its origin, by the largest of the block's scores.
  // Each thread looks at its own: what a row's four have in common is found only where it is
  // needed. In 16 bits floats are compared as such only there too: nearly all limits are above 0,
  // and others always pass. Beside scales it would take registers.
  static constexpr bool kQuick = !G::kCodes;
  struct Largest {
    float own[2];  // but where that is found later, or
    u32 of_rows;   // scores are in pairs: both in FP16
  };
  static OCTAVO_DEVICE bool passes_limit(const Scores& scores, const Rows& rows, Largest& largest,
                                         bool first) {
    if (kQuick && first) return true;
    if constexpr (G::kHalves) {
      const u32 pairs[2] = {Maxima::largest_pair(scores, 0), Maxima::largest_pair(scores, 1)};
      largest.of_rows = ptx::max_f16x2(ptx::permute_bytes(pairs[0], pairs[1], 0x5410),
                                       ptx::permute_bytes(pairs[0], pairs[1], 0x7632));
      return ptx::warp_any(ptx::any_ge_f16x2(largest.of_rows, rows.half_limits) ||
                           Halves::has_weak(rows));
    }
    bool passes = false;
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float limit = rows.limit[half];
      if constexpr (kQuick) {
        passes = passes || !(limit > 0 && Maxima::template own_max<true>(scores, half) < limit);
      } else {
        largest.own[half] = Maxima::own_max(scores, half);
        passes = passes || largest.own[half] >= limit;
      }
    }
    return ptx::warp_any(passes);
  }
  static OCTAVO_DEVICE float own_max(const Scores& scores, const Largest& largest, int half) {
    if constexpr (G::kHalves) return Halves::half_of(largest.of_rows, half);
    if constexpr (kQuick) return Maxima::own_max(scores, half);
    return largest.own[half];
  }
  // By how much, in powers of two, a row's largest score stands alone, as that of an attention sink
  // does: a quarter of the block's keys stays so far below it.
  static OCTAVO_DEVICE float height(float own, float of_row, float scale) {
    if constexpr (!G::kFolds) return 0;
    const float of_two = ptx::min_f32(own, ptx::shuffle_xor(own, 1));
    const float least = ptx::min_f32(of_two, ptx::shuffle_xor(of_two, 2));
    return least > -kInfinity ? (of_row - least) * scale : 0;
  }
  // From here on FP8's P ends where the format does, since little will pass such a score, and the
  // other keys keep two powers of two more; from there on many of them are subnormal all the same.
  static constexpr float kAlone = 6, kFarAbove = 9.5f;
  static OCTAVO_DEVICE float limit_of(const Rows& rows, int half) {
    return G::kHalves ? Halves::half_of(rows.half_limits, half) : rows.limit[half];
  }
  // What makes powers of two of a row's scores, where one scale is that of all.
  static OCTAVO_DEVICE float scale_of(const Rows& rows, int half, float of_all) {
    if constexpr (G::kHalves && C.ones)  // LSE wants it as it is
      return Halves::half_of(rows.half_scales, half) * G::kExponentUnit;
    return G::kCodes ? rows.scale[half] : of_all;
  }
  // A row's origin moves only when a score exceeds it by more than 2^G::kSlackLog2 after the
  // exponential: P and the sums stay far from overflow, and nearly every block leaves O as it is.
  // Each row decides for itself, so its bits do not depend on its neighbours. `alpha`: by what the
  // row's O is to be multiplied.
  static OCTAVO_DEVICE void move_origins(Rows& rows, const Scores& scores, const Largest& largest,
                                         float of_all, float (&alpha)[2]) {
    typename Halves::Moved halves;
    if constexpr (G::kHalves) ptx::pin(rows.half_scales);  // what comes of them is not kept
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float own = own_max(scores, largest, half);
      const float of_row = Maxima::row_max(own);
      const float scale = scale_of(rows, half, of_all);
      const bool moves = of_row > -kInfinity && of_row >= limit_of(rows, half);
      const float above = height(own, of_row, scale);
      const float below = above > kAlone ? G::kSlackLog2 : 0;
      const float largest_so_far = ptx::max_f32(rows.origin[half], of_row * scale);
      float to = largest_so_far - below;
      float limit = of_row + (G::kSlackLog2 - below) * ptx::reciprocal_approx(scale);
      if constexpr (G::kHalves) Halves::round_origin(to, limit, scale, largest_so_far);
      const float by = ptx::exp2_approx(rows.origin[half] - to);
      alpha[half] = moves ? by : 1.0f;
      rows.origin[half] = moves ? to : rows.origin[half];
      if constexpr (G::kHalves)
        halves.put(half, moves, to, limit, above > kFarAbove);
      else
        rows.limit[half] = moves ? limit : rows.limit[half];
      if constexpr (!C.ones) rows.sum[half] *= alpha[half];
    }
    if constexpr (G::kHalves) halves.move_into(rows);
  }
  // Scores become 2^(scale * s - origin): of eights of columns `from` to `to`.
  static OCTAVO_DEVICE void exponentials(Scores& scores, Rows& rows, float scale, int from,
                                         int to) {
    if constexpr (G::kHalves)
      exponentials_in_pairs(scores, rows, from, to);
    else if constexpr (G::kIntegers)
      ByteCodes<G>::exponentials(scores, rows, from, to);
    else
      exponentials_one_each(scores, rows, scale, from, to);
  }
  static OCTAVO_DEVICE void exponentials_one_each(Scores& scores, Rows& rows, float scale, int from,
                                                  int to) {
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float of_row = scale_of(rows, half, scale);
      const float origin = rows.origin[half] - G::kWeightLog2;
      float sum[2] = {0, 0};
      OCTAVO_UNROLL
      for (int i = from; i < to; ++i) {
        OCTAVO_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& s = scores.s[i * 4 + half * 2 + e];
          s = weight_of(s, of_row * Scales<G>::of_keys(scores, i), origin);
          if constexpr (!C.ones) sum[e] += s;
        }
      }
      if constexpr (!C.ones) rows.sum[half] += sum[0] + sum[1];
    }
  }
  static OCTAVO_DEVICE void rescale(State& state, const float (&alpha)[2]) {
    OCTAVO_UNROLL
    for (int i = 0; i < G::kO / 4; ++i) {
      OCTAVO_UNROLL
      for (int e = 0; e < 4; ++e) state.o[i * 4 + e] *= alpha[e / 2];
    }
  }

  static OCTAVO_DEVICE u32 pack(float low, float high) {
    return v_element(C) == Element::f16    ? ptx::f16x2_from_f32(low, high)
           : v_element(C) == Element::bf16 ? ptx::bf16x2_from_f32(low, high)
                                           : ptx::e4m3x2_from_f32(low, high);
  }
  // The accumulator's layout is the operand's: four pairs for each 16 keys. Of codes two pairs a
  // register, of keys that V has side by side (config/v_layout.h).
  static OCTAVO_DEVICE void pack_step(typename G::Probabilities& p, const Scores& scores,
                                      int step) {
    OCTAVO_UNROLL
    for (int i = 0; i < 4; ++i) {
      if constexpr (G::kFolds) {
        if constexpr (G::kHalves || G::kIntegers) {
          const u32* const pairs = scores.pairs + step * 8 + i / 2 * 4 + i % 2;
          p.a[step][i] = PairCodes<G>::pack(pairs[0], pairs[2], step * 2 + i / 2);
        } else {
          const float* const s = scores.s + step * 16 + i / 2 * 8 + i % 2 * 2;
          p.a[step][i] = pack(s[0], s[1]) | pack(s[4], s[5]) << 16;
        }
      } else {
        p.a[step][i] = pack(scores.s[step * 8 + i * 2], scores.s[step * 8 + i * 2 + 1]);
      }
    }
  }
  static OCTAVO_DEVICE void pack_p(typename G::Probabilities& p, const Scores& scores, Rows& rows) {
    OCTAVO_UNROLL
    for (int step = 0; step < G::kPvSteps; ++step) pack_step(p, scores, step);
    ByteRows<G>::add_up(p, rows, 0, G::kPvSteps);
  }

  // --- codes, scores in pairs of FP16 -----------------------------------------------------------

  // Few rows need either.
  static OCTAVO_DEVICE void move_scores(Scores& scores, const Rows& rows) {
    const bool any_remote = Halves::is_remote(rows, 0) || Halves::is_remote(rows, 1);
    if (!ptx::warp_any(any_remote || Halves::has_weak(rows))) return;
    if (ptx::warp_any(any_remote)) bring_near(scores, rows);
    if constexpr (G::kPolynomial)
      if (ptx::warp_any(Halves::has_weak(rows))) lift_weak(scores, rows);
  }
  static OCTAVO_DEVICE void bring_near(Scores& scores, const Rows& rows) {
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      // To the bit the score that the origin was made of.
      const float largest = rows.origin[half] * ptx::reciprocal_approx(scale_of(rows, half, 0));
      const float by =
          Halves::is_remote(rows, half) && rows.origin[half] > kLowest ? largest : 0.0f;
      OCTAVO_UNROLL
      for (int i = 0; i < G::kScores / 4; ++i) {
        u32& pair = scores.pairs[i * 2 + half];
        pair = ptx::sub_f16x2(pair, ptx::f16x2_from_f32(by, by));
      }
    }
  }

  // Scores of weak keys are moved to where the polynomial finds their codes: it has none for
  // subnormals. Each row decides for itself here too.
  static OCTAVO_DEVICE void lift_weak(Scores& scores, const Rows& rows) {
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      if ((Halves::twice(rows.half_limits, half) & Halves::kWeakBits) == 0) continue;
      const u32 by = Halves::twice(rows.half_scales, half),
                offsets = Halves::twice(rows.half_offsets, half);
      const float inverse = ptx::reciprocal_approx(Halves::half_of(rows.half_scales, half));
      const u32 back = ptx::f16x2_from_f32(inverse, inverse);
      OCTAVO_UNROLL
      for (int i = 0; i < G::kScores / 4; ++i) {
        u32& pair = scores.pairs[i * 2 + half];
        if (PairCodes<G>::by_polynomial(i / 2))
          pair = ptx::fma_f16x2(PairCodes<G>::lift(ptx::fma_f16x2(pair, by, offsets)), back, pair);
      }
    }
  }
  static OCTAVO_DEVICE void exponentials_in_pairs(Scores& scores, Rows& rows, int from, int to) {
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      const u32 by = Halves::twice(rows.half_scales, half),
                offsets = Halves::twice(rows.half_offsets, half);
      OCTAVO_UNROLL
      for (int i = from; i < to; ++i) {
        u32& pair = scores.pairs[i * 2 + half];
        if (C.code_exp)
          pair = PairCodes<G>::linear(ptx::fma_sat_f16x2(pair, by, offsets));
        else if (PairCodes<G>::by_polynomial(i / 2))
          pair = PairCodes<G>::polynomial(ptx::fma_f16x2(pair, by, offsets));
        else
          pair = ptx::exp2_approx_f16x2(ptx::fma_f16x2(pair, by, offsets));
      }
    }
    if constexpr (!C.ones) add_up(scores, rows, from, to);
  }
  static OCTAVO_DEVICE void add_up(const Scores& scores, Rows& rows, int from, int to) {
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      float sum[2] = {0, 0};
      OCTAVO_UNROLL
      for (int i = from; i < to; ++i) {
        float even, odd;
        ptx::f32_from_f16x2(even, odd, scores.pairs[i * 2 + half]);
        sum[0] += even;
        sum[1] += odd;
      }
      rows.sum[half] += sum[0] + sum[1];
    }
  }
  static OCTAVO_DEVICE void convert(Scores& scores) {
    OCTAVO_UNROLL
    for (int i = 0; i < G::kScores; ++i)
      scores.s[i] = G::kBiased ? ptx::float_of_bits(static_cast<u32>(scores.sums[i]))
                               : ptx::float_of_int(scores.sums[i]);
    if constexpr (!G::kBiased) ptx::pin(scores.s);  // or the compiler keeps both
  }

  // Part `part` of O's columns: o + t, or o + t * add. The last comes with the sums by ones,
  // as its last columns or apart.
  template <class Sums>
  static OCTAVO_DEVICE void fold(const Sums& t, State& state, [[maybe_unused]] const Rows& rows,
                                 int part) {
    constexpr int kRegisters = C.fold_columns / 2;
    const bool last = part + 1 == G::kParts;
    OCTAVO_UNROLL
    for (int i = 0; i < (last ? G::kFolded : kRegisters); ++i) {
      float& o = state.o[part * kRegisters + i];
      [[maybe_unused]] const int half = i % 4 / 2;
      if constexpr (G::kIntegers)
        o = ptx::fused_multiply_add(ptx::float_of_bits(static_cast<u32>(t[i])), rows.add[half], o);
      else
        o += t[i];
    }
    if constexpr (G::kOnesApart) {
      if (!last) return;
      OCTAVO_UNROLL
      for (int i = 0; i < G::kFoldedOnes; ++i) state.o[G::kColumns + i] += state.t_ones[i];
    }
  }
};

}  // namespace octavo::sm90
