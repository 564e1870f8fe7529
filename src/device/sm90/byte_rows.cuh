// P in bytes: it counts from the largest score of its block, which is that of integers, and so does
// what it adds to O and to the sums.
#pragma once

#include "device/ptx/math.cuh"
#include "device/ptx/thread.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/row_maxima.cuh"

namespace octavo::sm90 {

template <class G>
struct ByteRows {
  using Scores = typename G::Scores;
  using Rows = typename G::Rows;
  using Maxima = RowMaxima<G>;
  static constexpr Sm90Forward C = G::C;

  // This thread's largest in each group of keys that has a scale: of the products' integers, which
  // the ALU compares three at a time.
  static OCTAVO_DEVICE void find_largest_sums(Scores& scores) {
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      OCTAVO_UNROLL
      for (int g = 0; g < G::kKeyScales; ++g) {
        const i32* const s = scores.sums + g * Maxima::kGroupEights * 4 + half * 2;
        // Two chains: a maximum has to wait for the one before it.
        i32 chains[2] = {max_of(s[0], s[1]), max_of(s[4], s[5])};
        OCTAVO_UNROLL
        for (int i = 2; i < Maxima::kGroupEights; ++i)
          chains[i % 2] = max_of(max_of(chains[i % 2], s[i * 4]), s[i * 4 + 1]);
        scores.largest[g][half] = ptx::float_of_int(max_of(chains[0], chains[1]));
      }
    }
  }
  // Of floats, which may be scaled or masked. Biased ones are above 0, but for those not seen.
  static OCTAVO_DEVICE void find_largest(Scores& scores) {
    constexpr int kEights = Maxima::kGroupEights;
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      OCTAVO_UNROLL
      for (int g = 0; g < G::kKeyScales; ++g)
        scores.largest[g][half] =
            G::kBiased
                ? Maxima::template largest_above_0<kEights>(scores, half, g * kEights) - G::kBias
                : Maxima::template largest_of<kEights>(scores, half, g * kEights);
    }
  }

  // P counts from the block's own largest exponent, and what O counts from follows only when that
  // is far above it: FP32 has room, and nearly every block leaves O as it is. Whether a row of the
  // warp is so.
  static constexpr float kFar = 16;
  // From here on a unit of a row's scores is too much to lose by their bias, in powers of two.
  static constexpr float kLargeScale = 1.0f / 256;
  static OCTAVO_DEVICE bool take_block_origins(Scores& scores, Rows& rows) {
    bool far = false;
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      if constexpr (G::kBiased) {
        scores.near[half] = rows.scale[half] * largest_key_scale(scores) > kLargeScale;
        far = far || scores.near[half];
      }
      const float own = Maxima::over_groups(scores, [&](int g) { return scores.largest[g][half]; });
      rows.block_origin[half] = ptx::max_f32(Maxima::row_max(own) * rows.scale[half], kLowest);
      far = far || rows.block_origin[half] > rows.origin[half] + kFar;
    }
    return ptx::warp_any(far);
  }
  static OCTAVO_DEVICE float largest_key_scale(const Scores& scores) {
    if constexpr (!C.k_block_scales) return 1;
    float largest = scores.key_scales[0];
    OCTAVO_UNROLL
    for (int g = 1; g < G::kKeyScales; ++g) largest = ptx::max_f32(largest, scores.key_scales[g]);
    return largest;
  }
  // Each row decides for itself. `alpha`: by what its O is to be multiplied.
  static OCTAVO_DEVICE void raise_origins(Rows& rows, float (&alpha)[2]) {
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      const bool moves = rows.block_origin[half] > rows.origin[half] + kFar;
      const float to = moves ? rows.block_origin[half] : rows.origin[half];
      alpha[half] = ptx::exp2_approx(rows.origin[half] - to);
      rows.origin[half] = to;
      rows.sum[half] *= alpha[half];
      if constexpr (!C.ones) rows.bytes[half] *= alpha[half];
    }
  }
  // By what the block's P enters O and the sums.
  static OCTAVO_DEVICE void weigh_block(Rows& rows) {
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half)
      rows.add[half] = ptx::exp2_approx(rows.block_origin[half] - rows.origin[half]) * G::kAdd;
  }

  // P as it was rounded, of steps `from` to `to`, four bytes at a time.
  static OCTAVO_DEVICE void add_up(const typename G::Probabilities& p, Rows& rows, int from,
                                   int to) {
    if constexpr (!G::kIntegers) return;
    u32 sums[2] = {0, 0};
    OCTAVO_UNROLL
    for (int step = from; step < to; ++step) {
      OCTAVO_UNROLL
      for (int i = 0; i < 4; ++i) sums[i % 2] = ptx::add_bytes(p.a[step][i], sums[i % 2]);
    }
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      float& sum = C.ones ? rows.sum[half] : rows.bytes[half];
      sum = ptx::fused_multiply_add(ptx::float_of_bits(sums[half]), rows.add[half], sum);
    }
  }
};

}  // namespace octavo::sm90
