// What a few blocks' scores need before the softmax: keys that are not seen, and a negative scale.
#pragma once

#include "device/ptx/math.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/thread.cuh"
#include "device/sm90/byte_rows.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/row_maxima.cuh"

namespace octavo::sm90 {

template <class G>
struct Mask {
  using Scores = typename G::Scores;
  using Place = typename G::Place;
  static constexpr Sm90Forward C = G::C;

  // Keys that a row does not see get -infinity: those before `begin` and from `end` on.
  static OCTAVO_DEVICE void apply_mask(Scores& scores, const Sm90ForwardParams& p, const Place& w,
                                       i32 key) {
    if constexpr (G::kMasksGroups) return mask_in_groups(scores, p, w, key);
    OCTAVO_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      const KeyLimits keys = key_limits(p, w.at, w.query(p, half));
      const i32 first_column = key + static_cast<i32>(w.lane % 4 * 2);
      const i32 begin = ptx::mask_term(keys.begin - first_column, -C.block_n);
      const i32 end = ptx::mask_term(keys.end - first_column, 2 * C.block_n);
      if constexpr (G::kHalves) {
        hide_in_pairs(scores, half, [&](int column) { return bits_from(end - column); });
        // Few masks have a first key.
        if (ptx::warp_any(begin > 0))
          hide_in_pairs(scores, half, [&](int column) { return ~bits_from(begin - column); });
      } else {
        hide_floats(scores, half, begin, end);
      }
    }
    // The largest may be one that is hidden now.
    if constexpr (G::kIntegers && !G::kBiased) ByteRows<G>::find_largest(scores);
  }
  // `begin` and `end` from this thread's first column on.
  static OCTAVO_DEVICE void hide_floats(Scores& scores, u32 half, i32 begin, i32 end) {
    constexpr int kEights = G::kScores / 4;
    if constexpr (!G::kBiased) {
      hide_unseen(scores, half, 0, kEights,
                  [&](int column) { return column >= begin && column < end; });
    } else {
      hide_unseen(scores, half, 0, kEights, [&](int column) { return column < end; });
      if (ptx::warp_any(begin > 0))  // few masks have a first key
        hide_unseen(scores, half, 0, kEights, [&](int column) { return column >= begin; });
    }
  }
  // In eights of columns `from` to `to`.
  template <class Seen>
  static OCTAVO_DEVICE void hide_unseen(Scores& scores, u32 half, int from, int to,
                                        Seen&& is_seen) {
    OCTAVO_UNROLL
    for (int i = from; i < to; ++i) {
      bool seen[2];
      OCTAVO_UNROLL
      for (int e = 0; e < 2; ++e) seen[e] = is_seen(i * 8 + e);
      OCTAVO_UNROLL
      for (int e = 0; e < 2; ++e) {
        float& s = scores.s[i * 4 + half * 2 + e];
        s = seen[e] ? s : -kInfinity;
      }
    }
  }
  // The same of INT8 at 64 columns, in groups of keys that have a scale: most are seen by all rows
  // of a warp, or by none, and have no exponentials then. Where a row has a first key all groups
  // are looked at key by key. 353 to 336 us at (8,32,2048,64) causal, 49.7 to 47.7 at
  // (4,8,2048,64). At 128 and 256 columns a masked block's own exponentials cost the others: 1175
  // to 1230 us at (1,16,16384,128) causal.
  static OCTAVO_DEVICE void mask_in_groups(Scores& scores, const Sm90ForwardParams& p,
                                           const Place& w, i32 key) {
    const i32 first_column = key + static_cast<i32>(w.lane % 4 * 2);
    i32 end[2];
    bool begins = false;
    OCTAVO_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      const KeyLimits keys = key_limits(p, w.at, w.query(p, half));
      end[half] = ptx::mask_term(keys.end - first_column, 2 * C.block_n);
      begins = begins || ptx::mask_term(keys.begin - key, -C.block_n) > 0;
    }
    begins = ptx::warp_any(begins);
    scores.hidden = 0;
    OCTAVO_UNROLL
    for (int g = 0; g < G::kKeyScales; ++g) {
      constexpr int kEights = RowMaxima<G>::kGroupEights;
      const i32 first = g * kEights * 8, last = first + kEights * 8;
      if (!ptx::warp_any(end[0] < last || end[1] < last)) continue;
      if (!ptx::warp_any(end[0] > first || end[1] > first)) {
        scores.hidden |= 1u << g;
        OCTAVO_UNROLL
        for (int i = g * kEights * 4; i < (g + 1) * kEights * 4; ++i) scores.s[i] = -kInfinity;
        continue;
      }
      OCTAVO_UNROLL
      for (u32 half = 0; half < 2; ++half)
        hide_unseen(scores, half, g * kEights, (g + 1) * kEights,
                    [&](int column) { return column < end[half]; });
    }
    if (begins) {
      OCTAVO_UNROLL
      for (u32 half = 0; half < 2; ++half) {
        const i32 begin = key_limits(p, w.at, w.query(p, half)).begin - first_column;
        hide_unseen(scores, half, 0, G::kScores / 4, [&](int column) { return column >= begin; });
      }
    }
  }
  // hidden(column): the bits of a pair, from that column on, that are not seen.
  template <class Hidden>
  static OCTAVO_DEVICE void hide_in_pairs(Scores& scores, u32 half, Hidden&& hidden) {
    OCTAVO_UNROLL
    for (int i = 0; i < G::kScores / 4; ++i) {
      u32& pair = scores.pairs[i * 2 + half];
      const u32 bits = hidden(i * 8);
      pair = (pair & ~bits) | (0xfc00fc00u & bits);
    }
  }
  // The bits of column `from` of a pair and of those behind it: all, the upper half or none.
  static OCTAVO_DEVICE u32 bits_from(i32 from) {
    return ptx::shift_left(0xffffffffu, static_cast<u32>(max_of(from * 16, 0)));
  }

  // For a negative softmax scale: everything after works with its magnitude.
  static OCTAVO_DEVICE void negate(Scores& scores) {
    if constexpr (G::kHalves) {
      OCTAVO_UNROLL
      for (int i = 0; i < G::kScores / 2; ++i) scores.pairs[i] ^= 0x80008000u;
    } else {
      OCTAVO_UNROLL
      for (int i = 0; i < G::kScores; ++i)
        scores.s[i] = G::kBiased ? 2 * G::kBias - scores.s[i] : -scores.s[i];
    }
  }
};

}  // namespace octavo::sm90
