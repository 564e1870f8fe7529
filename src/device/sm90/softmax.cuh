// Online softmax on one warpgroup's scores: a thread has two rows, and of every eight columns two.
#pragma once

#include "device/ptx/term.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/wgmma.cuh"
#include "device/sm90/geometry.cuh"

namespace octavo::sm90 {

template <class G>
struct Softmax {
  using Scores = typename G::Scores;
  using State = typename G::State;
  using Rows = typename G::Rows;
  using Place = typename G::Place;
  static constexpr Sm90Forward C = G::C;

  // Keys that a row does not see get -infinity: those before `begin` and from `end` on.
  static OCTAVO_DEVICE void apply_mask(Scores& scores, const Sm90ForwardParams& p, const Place& w,
                                       i32 key) {
    OCTAVO_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      const KeyLimits keys = key_limits(p, w.at, w.query(p, half));
      const i32 first_column = key + static_cast<i32>(w.lane % 4 * 2);
      const i32 begin = ptx::mask_term(keys.begin - first_column, -C.block_n);
      const i32 end = ptx::mask_term(keys.end - first_column, 2 * C.block_n);
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

  // Whether a row of the warp has to move its origin, by the largest of the block's scores.
  static OCTAVO_DEVICE bool passes_limit(const Scores& scores, const Rows& rows,
                                         float (&largest)[2]) {
    largest[0] = block_max(scores, 0);
    largest[1] = block_max(scores, 1);
    return ptx::warp_any(largest[0] > rows.limit[0] || largest[1] > rows.limit[1]);
  }
  // A row's origin moves only when a score exceeds it by more than 2^rescale_log2 after the
  // exponential: P and the sums stay far from overflow, and nearly every block leaves O as it is.
  // Each row decides for itself, so its bits do not depend on its neighbours. `alpha`: by what the
  // row's O is to be multiplied.
  static OCTAVO_DEVICE void move_origins(Rows& rows, const float (&largest)[2], float scale,
                                         float (&alpha)[2]) {
    const float slack = C.rescale_log2 * ptx::reciprocal_approx(scale);
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      const bool moves = largest[half] > rows.limit[half];
      const bool first = rows.limit[half] == -kInfinity;
      const float to = largest[half] * scale;
      const float by = first ? 0.0f : ptx::exp2_approx(rows.origin[half] - to);
      alpha[half] = moves ? by : 1.0f;
      rows.origin[half] = moves ? to : rows.origin[half];
      rows.limit[half] = moves ? largest[half] + slack : rows.limit[half];
      if constexpr (!C.ones) rows.sum[half] *= alpha[half];
    }
  }
  // Scores become 2^(scale * s - origin): those of kSteps steps of keys, from step `from` on.
  template <int kSteps>
  static OCTAVO_DEVICE void exponentials(Scores& scores, Rows& rows, float scale, int from) {
    constexpr int kTiles = G::kStepKeys / 8;
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float by = G::kFolds ? rows.scale[half] : scale;
      const float origin =
          (G::kIntegers ? rows.block_origin[half] : rows.origin[half]) - G::kProbabilityLog2;
      float sum[2] = {0, 0};
      OCTAVO_UNROLL
      for (int i = from * kTiles; i < (from + kSteps) * kTiles; ++i) {
        OCTAVO_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& s = scores.s[i * 4 + half * 2 + e];
          s = weight_of(s, by, origin);
          if constexpr (!C.ones) sum[e] += s;
        }
      }
      if constexpr (G::kIntegers)
        rows.sum[half] = ptx::fused_multiply_add(sum[0] + sum[1], rows.add[half], rows.sum[half]);
      else if constexpr (!C.ones)
        rows.sum[half] += sum[0] + sum[1];
    }
  }
  static OCTAVO_DEVICE void exponentials(Scores& scores, Rows& rows, float scale) {
    exponentials<G::kPvSteps>(scores, rows, scale, 0);
  }
  static OCTAVO_DEVICE void rescale(State& state, const float (&alpha)[2]) {
    OCTAVO_UNROLL
    for (int i = 0; i < G::kO / 4; ++i) {
      OCTAVO_UNROLL
      for (int e = 0; e < 4; ++e) state.o[i * 4 + e] *= alpha[e / 2];
    }
  }

  static OCTAVO_DEVICE u32 pack(float low, float high) {
    return C.element == Element::f16    ? ptx::f16x2_from_f32(low, high)
           : C.element == Element::bf16 ? ptx::bf16x2_from_f32(low, high)
                                        : ptx::e4m3x2_from_f32(low, high);
  }
  // Adding 1.5 * 2^23 leaves round(p) in the low byte of the float: no F2I, which runs at an eighth
  // of the rate. Two of them in the low half.
  static OCTAVO_DEVICE u32 pack_bytes(float low, float high) {
    constexpr float kMagic = 12582912;
    return ptx::permute_bytes(ptx::bits_of(low + kMagic), ptx::bits_of(high + kMagic), 0x0040);
  }
  // The accumulator's layout is the operand's: four pairs for each 16 keys. In 8 bits two pairs a
  // register, of keys that V has side by side (config/v_layout.h).
  static OCTAVO_DEVICE void pack_step(typename G::Probabilities& p, const Scores& scores,
                                      int step) {
    OCTAVO_UNROLL
    for (int i = 0; i < 4; ++i) {
      if constexpr (is_8bit(C)) {
        const float* const s = scores.s + step * 16 + i / 2 * 8 + i % 2 * 2;
        if constexpr (G::kIntegers)
          p.a[step][i] = ptx::permute_bytes(pack_bytes(s[0], s[1]), pack_bytes(s[4], s[5]), 0x5410);
        else
          p.a[step][i] = pack(s[0], s[1]) | pack(s[4], s[5]) << 16;
      } else {
        p.a[step][i] = pack(scores.s[step * 8 + i * 2], scores.s[step * 8 + i * 2 + 1]);
      }
    }
  }
  static OCTAVO_DEVICE void pack_p(typename G::Probabilities& p, const Scores& scores) {
    OCTAVO_UNROLL
    for (int step = 0; step < G::kPvSteps; ++step) pack_step(p, scores, step);
  }

  // --- 8 bits -----------------------------------------------------------------------------------

  // From raw scores to powers of two: the scale of a row of Q, and that of K where a whole head has
  // one.
  static OCTAVO_DEVICE void find_scales(Rows& rows, const Sm90ForwardParams& params,
                                        const Place& w) {
    const Sm90Forward8BitParams& p = G::in_8_bits(params);
    const ScaleParams& q = p.q_scales;
    const ScaleParams& k = p.k_scales;
    float of_head = p.scale_log2;
    if constexpr (!C.k_row_scales)
      of_head *= ptx::load_global_f32(k.data + w.sequence * k.batch +
                                      p.by_heads_per_kv.quotient(w.head) * k.head);
    OCTAVO_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      const i32 row = (q.by_token ? w.at.q_begin : 0) + min_of(w.row(half), w.at.len_q - 1);
      rows.scale[half] =
          of_head *
          ptx::load_global_f32(q.data + w.sequence * q.batch + w.head * q.head +
                               static_cast<i64>(p.by_q_block_rows.quotient(row)) * q.stride);
    }
  }

  // Scores times the scale of their key, where keys have scales of their own.
  static OCTAVO_DEVICE void scale_keys(Scores& scores, u32 stage, u32 lane) {
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

  // A row's origin follows its largest score: P stays below 2^kProbabilityLog2, and what came
  // before is multiplied when the block is folded in, which costs nothing.
  static OCTAVO_DEVICE void raise_origins(const Scores& scores, Rows& rows) {
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float in_block = ptx::max_f32(block_max(scores, half) * rows.scale[half], kLowest);
      const float origin = ptx::max_f32(rows.origin[half], in_block);
      rows.keep[half] = ptx::exp2_approx(rows.origin[half] - origin);
      if constexpr (G::kIntegers) {
        rows.block_origin[half] = in_block;
        rows.add[half] = ptx::exp2_approx(in_block - origin);
      }
      rows.origin[half] = origin;
      rows.sum[half] *= rows.keep[half];
    }
  }

  static OCTAVO_DEVICE void convert(Scores& scores) {
    OCTAVO_UNROLL
    for (int i = 0; i < G::kScores; ++i) scores.s[i] = ptx::float_of_int(scores.sums[i]);
    ptx::pin(scores.s);  // or the compiler keeps both
  }

  // Part `part` of O's columns: o = o * keep + t, or + t * add.
  static OCTAVO_DEVICE void fold(State& state, const Rows& rows, int part) {
    OCTAVO_UNROLL
    for (int i = 0; i < G::kFolded; ++i) {
      float& o = state.o[part * G::kFolded + i];
      const int half = i % 4 / 2;
      if constexpr (G::kIntegers)
        o = ptx::fused_multiply_add(ptx::float_of_int(state.t_sums[i]), rows.add[half],
                                    o * rows.keep[half]);
      else
        o = ptx::fused_multiply_add(o, rows.keep[half], state.t[i]);
    }
  }
};

}  // namespace octavo::sm90
