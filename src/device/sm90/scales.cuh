// Scales of codes, on their way to the scores: those of Q's rows and of K's heads, in each row's
// multiplier; those of K's blocks, beside the scores; those of K's rows, in them.
#pragma once

#include "device/ptx/memory.cuh"
#include "device/sm90/geometry.cuh"

namespace octavo::sm90 {

template <class G>
struct Scales {
  using Scores = typename G::Scores;
  using Rows = typename G::Rows;
  using Place = typename G::Place;
  static constexpr Sm90Forward C = G::C;

  // From raw scores to powers of two: the scale of a row of Q, and that of K where a whole head has
  // one. In two steps: they are a while on their way.
  struct Loaded {
    float of_head, of_row[2];
  };
  static OCTAVO_DEVICE Loaded load(const Sm90ForwardParams& params, const Place& w) {
    const Sm90Forward8BitParams& p = G::in_8_bits(params);
    const ScaleParams& q = p.q_scales;
    const ScaleParams& k = p.k_scales;
    Loaded loaded;
    loaded.of_head = 1;
    if constexpr (scaled_rows(C) == 0)
      loaded.of_head = ptx::load_written_f32(k.data + w.sequence * k.batch +
                                             p.by_heads_per_kv.quotient(w.head) * k.head);
    OCTAVO_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      const i32 row = (q.by_token ? w.at.q_begin : 0) + min_of(w.query(p, half), w.at.len_q - 1);
      i32 head = w.head;
      // Rows behind the last head that shares these keys are not stored.
      if constexpr (C.pack_heads) head += min_of(G::head_of(p, w.row(half)), p.heads_per_kv - 1);
      loaded.of_row[half] =
          ptx::load_written_f32(q.data + w.sequence * q.batch + head * q.head +
                                static_cast<i64>(p.by_q_block_rows.quotient(row)) * q.stride);
    }
    return loaded;
  }
  static OCTAVO_DEVICE void set(Rows& rows, float scale_log2, const Loaded& loaded) {
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half)
      rows.scale[half] = scale_log2 * loaded.of_head * loaded.of_row[half];
    if constexpr (G::kHalves)
      rows.half_scales = ptx::f16x2_from_f32(in_half(rows.scale[0]), in_half(rows.scale[1]));
  }
  // Neither infinite nor 0, as a key that is not seen has -infinity and must keep it.
  static OCTAVO_DEVICE float in_half(float scale) {
    constexpr float kSmallest = 5.9604645e-8f, kLargest = 65504;
    return ptx::min_f32(ptx::max_f32(scale / G::kExponentUnit, kSmallest), kLargest);
  }

  // The scale of the keys of an eight of columns, where it is not in the scores or the row's.
  static OCTAVO_DEVICE float of_keys(const Scores& scores, int eight) {
    if constexpr (C.k_block_scales) return scores.key_scales[eight * 8 / scaled_rows(C)];
    return 1.0f;
  }
  static OCTAVO_DEVICE void load_of_keys(Scores& scores, u32 stage) {
    OCTAVO_UNROLL
    for (int i = 0; i < G::kKeyScales; ++i)
      scores.key_scales[i] = ptx::load_shared_f32(G::key_scales(stage) + i * 4);
  }
  // Scores times the scale of their key, where keys have scales of their own.
  static OCTAVO_DEVICE void multiply(Scores& scores, u32 stage, u32 lane) {
    const u32 scales = G::key_scales(stage) + lane % 4 * 8;
    OCTAVO_UNROLL
    for (int i = 0; i < G::kScores / 4; ++i) {
      u32 low, high;
      ptx::load_shared_b64(scales + i * 32, low, high);
      const float by[2] = {ptx::float_of_bits(low), ptx::float_of_bits(high)};
      OCTAVO_UNROLL
      for (int e = 0; e < 4; ++e) scores.s[i * 4 + e] *= by[e % 2];
    }
  }
};

}  // namespace octavo::sm90
