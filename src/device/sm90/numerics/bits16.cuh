// SPDX-License-Identifier: Apache-2.0
// Numerics of FP16 and BF16: scores in FP32, P rounded to 16 bits, P V accumulated straight into O.
//
// This file is also the list of what a numerics policy provides. The main loop and the epilogue
// call these members and do not ask which numerics they run:
//
//   Scores, Rows, State                   the score fragment, the softmax state of the thread's two
//                                         rows, and O with the rows
//   init_rows, begin_o                    at the start of a tile
//   qk                                    S = Q K^T on the tensor cores, into accumulator(scores)
//   finish_qk                             after the product, before K's stage is released
//   apply_mask, negate                    the mask, and a negative softmax scale
//   after_hiding                          after a block mask has hidden scores
//   kMergesSignAndMask                    whether one branch skips both
//   update_max, exp, pack_step, sum_p     the softmax
//   kPLog2, kSumLog2                      P is scaled by 2^kPLog2, sums of that by 2^kSumLog2
//   start_pv, finish_pv                   O += P V
//   finish_pv_then                        completes P V and issues the next Q K^T
//   kPollsBarriers                        whether to poll barriers early (mainloop.cuh)
//   row_sum, normalize_row                the epilogue
//   load_v, clear_v_tail                  loads V; zeroes its rows after the last key
//   fill_constants, kFillsConstants       constants in shared memory: ones, operands of the bias
//   wait_for_scales                       waits until scales that the kernel reads are written
//
// 8-bit only (in 16 bits these do nothing, and load_k_scales is absent):
//   RowScales, load_row_scales            scales of Q's rows and of heads of K
//   load_k_scales                         scales of K's blocks or rows, with KScales::block or row
//   VScales, load_v_scales,               scales of V's columns, read from global memory, passed on
//   publish_v_scales, scale_o             through shared memory, multiplied into O
//   kLoadsScalesEarly                     whether the next tile's scales are loaded before the
//                                         tile is stored
//   start_accumulator_bias,               INT8: sets the accumulators to a constant before Q K^T
//   finish_accumulator_bias               (unrelated to an attention bias, modifiers.cuh)
//
// Split-KV only:
//   interleave_pv                         16-bit P V: P V begins while P is still computed
//   to_partial, normalize_partial         a split's result, and the division of the combined one
//   ColumnScales                          8-bit V: the scales of the columns that a split reduces
#pragma once

#include "device/core/score_modifiers.cuh"
#include "device/ptx/tma.cuh"
#include "device/ptx/wgmma_f16.cuh"
#include "device/sm90/block_mask.cuh"
#include "device/sm90/gemm.cuh"
#include "device/sm90/loads.cuh"
#include "device/sm90/numerics/unscaled_v.cuh"
#include "device/sm90/softmax.cuh"

namespace octavo::sm90 {

// O += P V with 16-bit P and V. V is stored by rows (MN-major), in panels of columns, followed by a
// panel of ones, so that wgmma computes the row sums as more columns of O.
template <class G>
struct Pv16 : RowSums<G>, UnscaledV<G> {
  static constexpr Sm90ForwardConfig C = G::C;
  static constexpr Panels kPanels = v_panels(C);
  static constexpr u32 kRowBytes = kPanels.row_bytes;
  static constexpr bool kOnesInStage = G::kOnes && kPanels.count > 1;
  static_assert(C.pv_columns == 0 && C.pv_buffers == 1, "a 16-bit P V is one product");
  static constexpr bool kPollsBarriers = false;  // see mainloop.cuh
  static constexpr int kStepsAtOnce = C.block_n % 64 == 0 ? 64 / G::kStepKeys : G::kPvSteps;

  // The descriptor of a stage's V from key 16 * step on. In its low half, adding 1 moves the
  // address by 16 bytes, and subtracting 1 << 16 shrinks the leading offset, from panel to panel,
  // by as much: so the panel after V's only one stays at the ones, which all stages share.
  static OCTAVO_DEVICE u64 v_descriptor(u32 stage, int step) {
    constexpr bool kSharedOnes = G::kOnes && !kOnesInStage;
    constexpr Swizzle kSwizzle = swizzle_of(kRowBytes);
    const u32 next_panel = kSharedOnes ? G::S.ones - G::S.v : C.block_n * kRowBytes;
    const u32 first = static_cast<u32>(mn_major(G::v_tile(0), next_panel, kSwizzle));
    constexpr u32 kPer16Bytes = kSharedOnes ? 1u - (1u << 16) : 1u;
    return descriptor(first + stage * ((G::S.v_stage >> 4) * kPer16Bytes) +
                          ((step * 16 * kRowBytes) >> 4) * kPer16Bytes,
                      kSwizzle);
  }
  // `accumulate`: adds to what O holds, else replaces it.
  template <class State>
  static OCTAVO_DEVICE void pv_step(State& state, const typename G::P& p, u32 stage, int step,
                                    bool accumulate) {
    const u64 v = v_descriptor(stage, step);
    if constexpr (C.v_element == Element::f16)
      ptx::wgmma_f16<true>(state.o, p.a[step], v, accumulate);
    else
      ptx::wgmma_bf16<true>(state.o, p.a[step], v, accumulate);
  }

  template <class State>
  static OCTAVO_DEVICE void start_pv(State& state, typename G::P& p, u32 stage, bool accumulate) {
    ptx::pin(state.o);
    pin_p(p);
    ptx::wgmma_fence();
    OCTAVO_UNROLL
    for (int step = 0; step < G::kPvSteps; ++step)
      pv_step(state, p, stage, step, step > 0 || accumulate);
    ptx::wgmma_commit();
  }
  // Completes P V and issues the next Q K^T: before the wait if kQueued (pv_then_qk, mainloop.cuh).
  template <bool kQueued, class State, class Rows, class IssueQk>
  static OCTAVO_DEVICE void finish_pv_then(State& state, typename G::P& p, u32 /*stage*/,
                                           const Rows& /*rows*/, IssueQk&& issue_next_qk) {
    if (kQueued) issue_next_qk();
    ptx::wgmma_wait<kQueued ? 1 : 0>();
    ptx::pin(state.o);
    pin_p(p);
    if (!kQueued) issue_next_qk();
  }
  template <class State, class Rows>
  static OCTAVO_DEVICE void finish_pv(State& state, typename G::P& p, u32 stage, const Rows& rows) {
    finish_pv_then<false>(state, p, stage, rows, [] {});
  }
  // P V in parts of kStepsAtOnce steps: make_p(p, from, to) computes P of one part while the tensor
  // cores work on the previous one.
  template <class State, class MakeP>
  static OCTAVO_DEVICE void interleave_pv(State& state, u32 stage, bool accumulate,
                                          MakeP&& make_p) {
    ptx::pin(state.o);
    typename G::P p;
    OCTAVO_UNROLL
    for (int from = 0; from < G::kPvSteps; from += kStepsAtOnce) {
      make_p(p, from, from + kStepsAtOnce);
      ptx::wgmma_fence();
      OCTAVO_UNROLL
      for (int step = from; step < from + kStepsAtOnce; ++step)
        pv_step(state, p, stage, step, step > 0 || accumulate);
      ptx::wgmma_commit();
    }
    finish_pv(state, p, stage, state.rows);
  }

  // The first product of a tile replaces O.
  template <class State>
  static OCTAVO_DEVICE void begin_o(State&) {}

  // Four pairs for each 16 keys: the accumulator's layout is the operand's.
  static OCTAVO_DEVICE void pack_f32_step(typename G::P& p, const float* s, int step) {
    OCTAVO_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float low = s[step * 8 + i * 2], high = s[step * 8 + i * 2 + 1];
      p.a[step][i] = C.v_element == Element::f16 ? ptx::f16x2_from_f32(low, high)
                                                 : ptx::bf16x2_from_f32(low, high);
    }
  }
  template <class Rows>
  static OCTAVO_DEVICE void sum_p(const typename G::P&, Rows&, int, int) {}

  // --- producer ---------------------------------------------------------------------------------

  template <class Keys>
  static OCTAVO_DEVICE void load_v(const Sm90ForwardParams& p, u32 to, u32 bar,
                                   const SequenceSpan& span, i32 /*sequence*/, const Keys& n,
                                   i32 head, i32 batch) {
    load_rows(p.v, to, bar, C.block_n, span.kv_begin + key_at<G>(n, 0), head, batch, kPanels);
  }
  // Zeroes the keys from `first` on, which belong to the next sequence of a varlen batch or to the
  // padding: their P is 0, but 0 * NaN would be NaN.
  template <int kThreads>
  static OCTAVO_DEVICE void clear_v_tail(u32 tile, i32 first, u32 thread) {
    const u32 from = static_cast<u32>(max_of(first, 0)) * kRowBytes;
    constexpr u32 kPanelBytes = C.block_n * kRowBytes;
    OCTAVO_UNROLL
    for (u32 panel = 0; panel < kPanels.count; ++panel)
      fill_shared<kThreads>(tile + panel * kPanelBytes + from, kPanelBytes - from, thread, 0);
  }
  template <int kThreads>
  static OCTAVO_DEVICE void fill_constants(u32 thread) {
    constexpr u32 kOnePair = C.v_element == Element::f16 ? 0x3c003c00u : 0x3f803f80u;
    if constexpr (kOnesInStage) {
      OCTAVO_UNROLL
      for (u32 stage = 0; stage < kv_buffers(C); ++stage)
        fill_shared<kThreads>(G::v_tile(stage) + G::S.v_bytes, C.block_n * kRowBytes, thread,
                              kOnePair);
    } else if constexpr (G::kOnes) {
      fill_shared<kThreads>(G::smem(G::S.ones), 16 * kRowBytes, thread, kOnePair);
    }
  }
  static constexpr bool kFillsConstants = G::kOnes;
};

// S = Q K^T with 16-bit Q and K, in FP32.
template <class G>
struct Qk16 {
  static constexpr Sm90ForwardConfig C = G::C;
  struct Scores {
    float s[G::kScores];
  };
  struct Rows : RowState {
    float threshold[2];  // the score at which ref_max rises; -infinity before the first key
  };

  static OCTAVO_DEVICE auto& accumulator(Scores& scores) { return scores.s; }
  static OCTAVO_DEVICE void qk(Scores& scores, u32 q, u32 stage) {
    for_each_qk_step<G>(q, stage, [&](u64 a, u64 b, int step) {
      if constexpr (C.element == Element::f16)
        ptx::wgmma_f16<false, false>(scores.s, a, b, step > 0);
      else
        ptx::wgmma_bf16<false, false>(scores.s, a, b, step > 0);
    });
  }
  static OCTAVO_DEVICE void start_accumulator_bias(Scores&) {}
  template <int kPending>
  static OCTAVO_DEVICE void finish_accumulator_bias(Scores&) {}
  static OCTAVO_DEVICE void finish_qk(Scores&, u32 /*stage*/, u32 /*lane*/) {}

  // With a bias the scores are in natural units.
  static OCTAVO_DEVICE float multiplier(const Rows&, int /*r*/, float scale_log2, float row_level) {
    if (!C.modifiers.bias) return scale_log2;
    return is_huge<G>(row_level) ? 1.0f : kLog2E;
  }
  static OCTAVO_DEVICE float k_scale(const Scores&, int /*n8*/) { return 1.0f; }
  static OCTAVO_DEVICE float headroom_used(float, float, float) { return 0; }

  // Nearly all thresholds are positive, so positive_thread_max decides. A row whose threshold is
  // not positive is always reported here, and update_max then compares floats.
  struct Largest {};
  static OCTAVO_DEVICE bool exceeds_threshold(const Scores& scores, const Rows& rows, Largest&,
                                              bool first) {
    if (first) return true;
    bool exceeds = false;
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float threshold = rows.threshold[r];
      exceeds = exceeds ||
                !(threshold > 0 && positive_thread_max<G::kScoreN8>(scores.s, r, 0) < threshold);
    }
    return ptx::warp_any(exceeds);
  }
  static OCTAVO_DEVICE float thread_max_of(const Scores& scores, const Largest&, int r) {
    return thread_max<G::kScoreN8>(scores.s, r, 0);
  }

  static OCTAVO_DEVICE void apply_mask(Scores& scores, const Sm90ForwardParams& p,
                                       const typename G::RowTile& tile, i32 n) {
    mask_f32<G>(scores.s, p, tile, n);
  }
  static OCTAVO_DEVICE void after_hiding(Scores&) {}
  // With one branch for sign and mask, as in 8 bits, three warpgroups of 128 keys spill.
  static constexpr bool kMergesSignAndMask = false;
  // A negative softmax scale: everything after works with its magnitude.
  static OCTAVO_DEVICE void negate(Scores& scores) {
    OCTAVO_UNROLL
    for (float& s : scores.s) s = -s;
  }

  static OCTAVO_DEVICE void wait_for_scales() {
    if (is_8bit_out(C)) wait_for_written_scales<G>();
  }
  struct RowScales {};
  template <class TileOf>
  static OCTAVO_DEVICE RowScales load_row_scales(const Sm90ForwardParams&, TileOf&&) {
    return {};
  }
  static OCTAVO_DEVICE void init_rows(Rows& rows, float /*scale_log2*/, const RowScales&) {
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r) {
      rows.threshold[r] = -kInfinity;
      rows.ref_max[r] = kLowest;
      rows.sum[r] = 0;
    }
  }
};

// P may grow to 2^kHeadroom16Log2 before O is rescaled: far from overflow in 16 bits, and its sums
// in FP32.
inline constexpr int kHeadroom16Log2 = 8;

// 16-bit P and V with any Q and K whose scores are FP32: Qk16, or QuantizedF32Qk (quantized.cuh).
template <class G, class Qk>
struct NumericsPv16 : Pv16<G>, Qk, F32Softmax<G, Qk, kHeadroom16Log2, 0> {
  using Scores = typename Qk::Scores;
  using Rows = typename Qk::Rows;
  struct State {
    float o[G::kORegistersWithOnes];
    Rows rows;
  };
  static constexpr float kPLog2 = 0;
  static constexpr bool kLoadsScalesEarly = false;

  static OCTAVO_DEVICE void pack_step(typename G::P& p, const Scores& scores, int step) {
    Pv16<G>::pack_f32_step(p, scores.s, step);
  }
};

}  // namespace octavo::sm90
