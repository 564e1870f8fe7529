// The largest of a block's scores: a thread has two rows, and of every eight columns two.
#pragma once

#include "device/ptx/math.cuh"
#include "device/ptx/thread.cuh"
#include "device/sm90/geometry.cuh"

namespace octavo::sm90 {

template <class G>
struct RowMaxima {
  using Scores = typename G::Scores;
  static constexpr Sm90Forward C = G::C;

  // Of a block, this thread's, of even columns and of odd ones.
  static OCTAVO_DEVICE u32 largest_pair(const Scores& scores, int half) {
    u32 pair = scores.pairs[half];
    OCTAVO_UNROLL
    for (int i = 1; i < G::kScores / 4; ++i)
      pair = ptx::max_f16x2(pair, scores.pairs[i * 2 + half]);
    return pair;
  }
  // Of eights of columns from `from` on, this thread's two in each.
  template <int kEights>
  static OCTAVO_DEVICE float largest_of(const Scores& scores, int half, int from) {
    // Two chains: a maximum has to wait for the one before it.
    float even = scores.s[from * 4 + half * 2];
    float odd = scores.s[from * 4 + half * 2 + 1];
    OCTAVO_UNROLL
    for (int i = from + 1; i < from + kEights; ++i) {
      even = ptx::max_f32(even, scores.s[i * 4 + half * 2]);
      odd = ptx::max_f32(odd, scores.s[i * 4 + half * 2 + 1]);
    }
    return ptx::max_f32(even, odd);
  }
  // The same in the order of integers, which floats above 0 are in too: the ALU compares three of
  // them at once, and floats two by two. Where none is above 0, what comes is not, or not a number.
  template <int kEights>
  static OCTAVO_DEVICE float largest_above_0(const Scores& scores, int half, int from) {
    const auto bits = [&](int i, int e) {
      return static_cast<i32>(ptx::bits_of(scores.s[i * 4 + half * 2 + e]));
    };
    i32 chains[2] = {max_of(bits(from, 0), bits(from, 1)),
                     max_of(bits(from + 1, 0), bits(from + 1, 1))};
    OCTAVO_UNROLL
    for (int i = from + 2; i < from + kEights; ++i)
      chains[i % 2] = max_of(max_of(chains[i % 2], bits(i, 0)), bits(i, 1));
    return ptx::float_of_bits(static_cast<u32>(max_of(chains[0], chains[1])));
  }
  // Of groups of keys, each times the scale of its keys. of_group(g): this thread's.
  template <class OfGroup>
  static OCTAVO_DEVICE float over_groups(const Scores& scores, OfGroup&& of_group) {
    const auto scaled = [&](int g) {
      const float largest = of_group(g);
      return C.k_block_scales ? largest * scores.key_scales[g] : largest;
    };
    float largest = scaled(0);
    OCTAVO_UNROLL
    for (int g = 1; g < G::kKeyScales; ++g) largest = ptx::max_f32(largest, scaled(g));
    return largest;
  }
  static constexpr int kGroupEights = G::kScores / 4 / G::kKeyScales;
  // Of a block, this thread's, times the scales of its keys.
  template <bool kAbove0 = false>
  static OCTAVO_DEVICE float own_max(const Scores& scores, int half) {
    return over_groups(scores, [&](int g) {
      return kAbove0 ? largest_above_0<kGroupEights>(scores, half, g * kGroupEights)
                     : largest_of<kGroupEights>(scores, half, g * kGroupEights);
    });
  }
  // Of a row, four threads'.
  static OCTAVO_DEVICE float row_max(float own) {
    const float of_two = ptx::max_f32(own, ptx::shuffle_xor(own, 1));
    return ptx::max_f32(of_two, ptx::shuffle_xor(of_two, 2));
  }
};

}  // namespace octavo::sm90
