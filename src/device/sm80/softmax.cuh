// Mask, scales and online softmax on the score registers of one warp.
#pragma once

#include "device/ptx/term.cuh"
#include "device/ptx/thread.cuh"
#include "device/sm80/geometry.cuh"

namespace octavo::sm80 {

template <class G>
struct Softmax {
  using Scores = typename G::Scores;
  using State = typename G::State;
  using Place = typename G::Place;
  using Operands = typename G::Operands;
  static constexpr int kTilesM = G::kTilesM, kTilesN = G::kTilesN, kTilesD = G::kTilesD;

  // How a block enters O where its PV has an accumulator of its own: o = o * keep + t * add.
  struct Fold {
    float keep[kTilesM][2];
    float add[kTilesM][2];
  };

  // Keys outside a row's interval become -infinity; `key` is the block's first.
  static OCTAVO_DEVICE void apply_mask(Scores& scores, const ForwardParams& p, const Place& w,
                                       i32 key) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int half = 0; half < 2; ++half) {
        const i32 row = w.first_row + static_cast<i32>(w.row(m, half));
        const KeyLimits keys = key_limits(p, w.at, row);
        const i32 first_column = key + static_cast<i32>(w.lane % 4 * 2);
        const i32 begin = ptx::mask_term(keys.begin - first_column, -G::C.block_n);
        const i32 end = ptx::mask_term(keys.end - first_column, 2 * G::C.block_n);
        OCTAVO_UNROLL
        for (int n = 0; n < kTilesN; ++n) {
          OCTAVO_UNROLL
          for (int e = 0; e < 2; ++e) {
            const i32 column = n * 8 + e;
            float& s = scores.s[m][n][half * 2 + e];
            s = column >= begin && column < end ? s : -kInfinity;
          }
        }
      }
    }
  }

  // For a negative softmax scale: everything after works with its magnitude.
  static OCTAVO_DEVICE void negate(Scores& scores) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int n = 0; n < kTilesN; ++n) {
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) scores.s[m][n][e] = -scores.s[m][n][e];
      }
    }
  }

  // Scores times the scale of their key, where keys have scales of their own.
  static OCTAVO_DEVICE void scale_keys(Scores& scores, const ForwardParams& p, const Place& w,
                                       i32 key) {
    const ScaleParams& k = p.k_scales;
    const float* const scales = k.data + w.sequence * k.batch + w.head / p.heads_per_kv * k.head;
    const i32 token = k.by_token ? w.at.kv_begin : 0;
    OCTAVO_UNROLL
    for (int n = 0; n < kTilesN; ++n) {
      OCTAVO_UNROLL
      for (int e = 0; e < 2; ++e) {
        const i32 column = key + n * 8 + static_cast<i32>(w.lane % 4 * 2) + e;
        const i32 row = token + min_of(column, w.at.len_kv - 1);
        const float scale =
            ptx::load_global_f32(scales + static_cast<i64>(row / k.block_rows) * k.stride);
        OCTAVO_UNROLL
        for (int m = 0; m < kTilesM; ++m) {
          scores.s[m][n][e] *= scale;
          scores.s[m][n][2 + e] *= scale;
        }
      }
    }
  }

  static OCTAVO_DEVICE float block_max(const Scores& scores, int m, int half) {
    float largest = scores.s[m][0][half * 2];
    OCTAVO_UNROLL
    for (int n = 0; n < kTilesN; ++n)
      largest = ptx::max_f32(largest,
                             ptx::max_f32(scores.s[m][n][half * 2], scores.s[m][n][half * 2 + 1]));
    largest = ptx::max_f32(largest, ptx::shuffle_xor(largest, 1));
    return ptx::max_f32(largest, ptx::shuffle_xor(largest, 2));
  }

  // Scores of one row become 2^(scale * s - origin); their sum in this thread.
  static OCTAVO_DEVICE float exponentiate(Scores& scores, int m, int half, float scale,
                                          float origin) {
    float sum = 0;
    OCTAVO_UNROLL
    for (int n = 0; n < kTilesN; ++n) {
      OCTAVO_UNROLL
      for (int e = 0; e < 2; ++e) {
        float& s = scores.s[m][n][half * 2 + e];
        s = weight_of<G::C.exp>(s, scale, origin);
        sum += s;
      }
    }
    return sum;
  }

  // For products that accumulate straight into O.
  //
  // A row's maximum moves only when a score exceeds it by more than 2^rescale_log2 after the
  // exponential: P and the sum stay far from overflow, and rescaling O, a multiplication per
  // element, is skipped by nearly every block. Each row decides for itself, so its bits do not
  // depend on its neighbours; the warp only skips the work when no row moved.
  static OCTAVO_DEVICE void raise_origins(const Scores& scores, State& state) {
    float largest[kTilesM][2];
    bool any_moves = false;
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int half = 0; half < 2; ++half) {
        largest[m][half] = exponent_of(block_max(scores, m, half), state.scale_of(m, half));
        any_moves = any_moves || moves(state, m, half, largest[m][half]);
      }
    }
    if (!ptx::warp_any(any_moves)) return;
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int half = 0; half < 2; ++half)
        if (moves(state, m, half, largest[m][half])) rescale(state, m, half, largest[m][half]);
    }
  }
  static OCTAVO_DEVICE bool moves(const State& state, int m, int half, float to) {
    return to - state.origin[m][half] > G::C.rescale_log2;
  }
  static OCTAVO_DEVICE void rescale(State& state, int m, int half, float to) {
    const float alpha = ptx::exp2_approx(state.origin[m][half] - to);
    state.origin[m][half] = to;
    state.sum[m][half] *= alpha;
    OCTAVO_UNROLL
    for (int n = 0; n < kTilesD; ++n) {
      OCTAVO_UNROLL
      for (int e = half * 2; e < half * 2 + 2; ++e) state.o[m][n][e] *= alpha;
    }
  }
  // Register i of P's fragments of one step: two neighbouring keys of one row, added to its sum.
  static OCTAVO_DEVICE u32 probabilities(const Scores& scores, State& state, int step, int i) {
    const int m = i / 4, half = i % 2;
    const float(&s)[4] = scores.s[m][step * 2 + i % 4 / 2];
    const float scale = state.scale_of(m, half), origin = state.origin[m][half];
    if constexpr (G::C.exp == ExpForm::f16x2) {
      const u32 p = ptx::exp2_approx_f16x2(
          ptx::f16x2_from_f32(ptx::fused_multiply_add(s[half * 2], scale, -origin),
                              ptx::fused_multiply_add(s[half * 2 + 1], scale, -origin)));
      float low, high;
      ptx::f32_from_f16x2(low, high, p);
      state.sum[m][half] += low + high;
      return p;
    } else {
      const float low = weight_of<G::C.exp>(s[half * 2], scale, origin);
      const float high = weight_of<G::C.exp>(s[half * 2 + 1], scale, origin);
      state.sum[m][half] += low + high;
      return Operands::pack_pair(low, high);
    }
  }

  // For products that are folded into O block by block: the rescale comes with the fold.
  static OCTAVO_DEVICE void fold_step(Scores& scores, State& state, Fold& fold) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float scale = state.scale_of(m, half);
        const float in_block = exponent_of(block_max(scores, m, half), scale);
        const float origin = ptx::max_f32(state.origin[m][half], in_block);
        const float keep = ptx::exp2_approx(state.origin[m][half] - origin);
        const float add = Operands::kBlockMaximum ? ptx::exp2_approx(in_block - origin) : 1.0f;
        const float p_origin =
            Operands::kBlockMaximum ? in_block : origin - Operands::kProbabilityLog2;
        const float sum = exponentiate(scores, m, half, scale, p_origin);
        state.origin[m][half] = origin;
        state.sum[m][half] = ptx::fused_multiply_add(state.sum[m][half], keep, sum * add);
        fold.keep[m][half] = keep;
        fold.add[m][half] = add;
      }
    }
  }
};

}  // namespace octavo::sm80
