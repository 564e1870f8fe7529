// Online softmax on one warpgroup's scores: a thread has two rows, and of every eight columns two.
#pragma once

#include "device/ptx/thread.cuh"
#include "device/sm90/geometry.cuh"

namespace octavo::sm90 {

template <class G>
struct Softmax {
  using Scores = typename G::Scores;
  using State = typename G::State;
  using Place = typename G::Place;
  static constexpr Sm90Forward C = G::C;

  // What happens to O and the sums when the maximum moves.
  struct Rescale {
    float alpha[2];
    bool any;  // in this warp
  };

  // Keys that a row does not see get -infinity: those before `begin` and from `end` on.
  static OCTAVO_DEVICE void apply_mask(Scores& scores, const Sm90ForwardParams& p, const Place& w,
                                       i32 key) {
    OCTAVO_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      const KeyLimits keys = key_limits(p, w.at, w.row(half));
      const i32 first_column = key + static_cast<i32>(w.lane % 4 * 2);
      const i32 begin = keys.begin - first_column;
      const i32 end = keys.end - first_column;
      OCTAVO_UNROLL
      for (int i = 0; i < G::kScores / 4; ++i) {
        OCTAVO_UNROLL
        for (int e = 0; e < 2; ++e) {
          const i32 column = i * 8 + e;
          float& s = scores.s[i * 4 + half * 2 + e];
          s = column >= begin && column < end ? s : -kInfinity;
        }
      }
    }
  }

  // For a negative softmax scale: everything after works with its magnitude.
  static OCTAVO_DEVICE void negate(Scores& scores) {
    OCTAVO_UNROLL
    for (int i = 0; i < G::kScores; ++i) scores.s[i] = -scores.s[i];
  }

  static OCTAVO_DEVICE float block_max(const Scores& scores, int half) {
    // Two chains: a maximum has to wait for the one before it.
    float even = scores.s[half * 2];
    float odd = scores.s[half * 2 + 1];
    OCTAVO_UNROLL
    for (int i = 1; i < G::kScores / 4; ++i) {
      even = ptx::max_f32(even, scores.s[i * 4 + half * 2]);
      odd = ptx::max_f32(odd, scores.s[i * 4 + half * 2 + 1]);
    }
    float largest = ptx::max_f32(even, odd);
    largest = ptx::max_f32(largest, ptx::shuffle_xor(largest, 1));
    return ptx::max_f32(largest, ptx::shuffle_xor(largest, 2));
  }

  // Scores become 2^(scale * (s - maximum)). A row's maximum moves only when a score exceeds it by
  // more than 2^rescale_log2 after the exponential: P and the sums stay far from overflow, and
  // rescaling O is skipped by nearly every block. Each row decides for itself, so its bits do not
  // depend on its neighbours.
  static OCTAVO_DEVICE Rescale step(Scores& scores, State& state, float scale) {
    Rescale r;
    bool moves_any = false;
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float from = state.max[half];
      const float largest = block_max(scores, half);
      const bool moves = largest > from && (largest - from) * scale > C.rescale_log2;
      const float to = moves ? largest : from;
      const float origin = origin_of(to, scale);
      r.alpha[half] = moves ? weight_of(from, scale, origin) : 1.0f;
      moves_any = moves_any || moves;
      state.max[half] = to;
      float sum[2] = {0, 0};
      OCTAVO_UNROLL
      for (int i = 0; i < G::kScores / 4; ++i) {
        OCTAVO_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& s = scores.s[i * 4 + half * 2 + e];
          s = weight_of(s, scale, origin);
          if constexpr (!C.ones) sum[e] += s;
        }
      }
      if constexpr (!C.ones)
        state.sum[half] = ptx::fused_multiply_add(state.sum[half], r.alpha[half], sum[0] + sum[1]);
    }
    r.any = ptx::warp_any(moves_any);
    return r;
  }

  // After P V of the block before, which was still written with the old maximum.
  static OCTAVO_DEVICE void rescale(State& state, const Rescale& r) {
    if (!r.any) return;
    OCTAVO_UNROLL
    for (int i = 0; i < G::kO / 4; ++i) {
      OCTAVO_UNROLL
      for (int e = 0; e < 4; ++e) state.o[i * 4 + e] *= r.alpha[e / 2];
    }
  }

  static OCTAVO_DEVICE u32 pack(float low, float high) {
    return C.element == Element::f16 ? ptx::f16x2_from_f32(low, high)
                                     : ptx::bf16x2_from_f32(low, high);
  }
  // The accumulator's layout is the operand's: four pairs for each 16 keys.
  static OCTAVO_DEVICE void pack_p(typename G::Probabilities& p, const Scores& scores) {
    OCTAVO_UNROLL
    for (int step = 0; step < G::kPvSteps; ++step) {
      OCTAVO_UNROLL
      for (int i = 0; i < 4; ++i)
        p.a[step][i] = pack(scores.s[step * 8 + i * 2], scores.s[step * 8 + i * 2 + 1]);
    }
  }
};

}  // namespace octavo::sm90
