// SPDX-License-Identifier: Apache-2.0
// The transposed products of a step with an int4 cache and eight query rows: s^T = k q^T and
// o^T = v^T p^T. Sixteen keys, or sixteen columns of O, are the rows of an mma tile. The fragments
// are those of int4_products.cuh in another order.
//
// A tile of O^T has two tiles of ProductsInt4 as its upper and its lower eight rows. In the tile
// after O the upper rows are the groups of V's zeros, and the lower rows are not used.
#pragma once

#include "device/decode/int4_products.cuh"
#include "device/decode/products.cuh"
#include "device/ptx/fragment.cuh"

namespace octavo::decode {

template <class G>
struct ProductsInt4Transposed : ProductsInt4<G> {
  using Base = ProductsInt4<G>;
  using Thread = typename G::Thread;
  using Scores = typename G::Scores;
  using State = typename G::State;
  using Operands = typename G::Operands;
  static constexpr DecodeConfig C = G::C;
  static constexpr int kChunks = Base::kChunks;
  static constexpr u32 kGroups = Base::kGroups;

  // Sixteen keys at a time. Their sums begin with the terms of the zeros; then each group of
  // channels adds scale * (q n).
  static OCTAVO_DEVICE void qk_gemm(Scores& scores, const typename G::Q& q, const Thread& thread,
                                    int stage) {
    const u32 first_key = thread.warp * C.block_n;
    const auto lane = Operands::lane(G::k_tile(stage), first_key, thread.lane);
    OCTAVO_UNROLL
    for (int n = 0; n < G::kTilesN; n += 2) {
      const u32 key = first_key + static_cast<u32>(n * 8);
      scores.clear_tile(n / 2);
      add_transposed(scores.s[0][n / 2], [&](float(&s)[4]) {
        add_zeros_of_k(s, q, thread, stage, key);
        float of_group[4];
        OCTAVO_UNROLL
        for (int pair = 0; pair < kChunks / 2; ++pair) {
          u32 k[4];  // eight keys, the next eight; then the same of the second chunk
          ptx::ldmatrix_x4(k, lane.at(static_cast<u32>(n * 8), static_cast<u32>(pair * 2)));
          OCTAVO_UNROLL
          for (int i = 0; i < 2; ++i) {
            const int channel = (pair * 2 + i) * 32;
            if (channel % C.group == 0) {
              OCTAVO_UNROLL
              for (int e = 0; e < 4; ++e) of_group[e] = 0;
            }
            add_chunk_of_k(of_group, q, thread, channel, k[2 * i], k[2 * i + 1]);
            if ((channel + 32) % C.group == 0)
              add_group(s, of_group, thread, stage, key, static_cast<u32>(channel / C.group));
          }
        }
      });
    }
  }

  // o += p v, and in one more tile the sums of p times V's zeros.
  static OCTAVO_DEVICE void pv_gemm(State& state, const Scores& weights, const Thread& thread,
                                    int stage) {
    const u32 first_key = thread.warp * C.block_n;
    const auto lane = Operands::lane(G::v_tile(stage), first_key, thread.lane);
    OCTAVO_UNROLL
    for (int step = 0; step < G::kPvSteps; ++step) {
      const u32 key = first_key + static_cast<u32>(step * 16);
      const FragmentB w = transposed_weights<Operands>(weights.s[0][step]);
      u32 zeros[2];
      ptx::ldmatrix_x2(zeros, Base::zeros_row(stage, key, 3 * kGroups, thread.lane));
      add_transposed(state.o[0][G::kOTiles], [&](float(&o)[4]) {
        Operands::mma_pv(o, FragmentA{{zeros[0], 0, zeros[1], 0}}, w.r, o);
      });
      FragmentB scaled;
      Base::for_each_chunk_of_v(lane, step, [&](int chunk, u32 low, u32 high) {
        if (chunk * 32 % C.group == 0)
          scale_weights(scaled, w, thread, stage, key, static_cast<u32>(chunk * 32 / C.group));
        add_chunk_of_v(state, scaled, chunk, low, high);
      });
    }
  }

 private:
  // Adds the sums of Q times the zeros of sixteen keys of K.
  static OCTAVO_DEVICE void add_zeros_of_k(float (&s)[4], const typename G::Q& q,
                                           const Thread& thread, int stage, u32 key) {
    u32 zeros[2];
    ptx::ldmatrix_x2_trans(zeros, Base::zeros_row(stage, key, kGroups, thread.lane));
    const u32 sums[2] = {q.sums[0].r[0], q.sums[0].r[2]};
    Operands::mma_qk(s, FragmentA{{zeros[0], zeros[1], zeros[0], zeros[1]}}, sums, s);
  }

  // Adds the products of 32 channels; `first` holds them for eight keys, `second` for the others.
  static OCTAVO_DEVICE void add_chunk_of_k(float (&s)[4], const typename G::Q& q,
                                           const Thread& thread, int channel, u32 first,
                                           u32 second) {
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      const FragmentA of_q = q.fragment(0, channel / 16 + half, thread);
      const u32 b[2] = {of_q.r[0], of_q.r[2]};
      const u32 x = first >> (half * 8), y = second >> (half * 8);
      Operands::mma_qk(
          s, FragmentA{{x & Base::kLow, y & Base::kLow, x & Base::kHigh, y & Base::kHigh}}, b, s);
    }
  }

  // Adds a group's part of the scores of sixteen keys, times the scales of the thread's two keys.
  static OCTAVO_DEVICE void add_group(float (&s)[4], const float (&of_group)[4],
                                      const Thread& thread, int stage, u32 key, u32 group) {
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      const u32 row = G::group_row(stage, key + static_cast<u32>(half * 8), group);
      const float scale = ptx::load_shared_f16(row + thread.lane / 4 * 2);
      OCTAVO_UNROLL
      for (int e = half * 2; e < half * 2 + 2; ++e)
        s[e] = ptx::fused_multiply_add(of_group[e], scale, s[e]);
    }
  }

  // P times the scales of V of a group.
  static OCTAVO_DEVICE void scale_weights(FragmentB& scaled, const FragmentB& w,
                                          const Thread& thread, int stage, u32 key, u32 group) {
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      const u32 row = G::group_row(stage, key + static_cast<u32>(half * 8), 2 * kGroups + group);
      scaled.r[half] = ptx::fma_f16x2(w.r[half], Base::load_pair(row, thread.lane), 0);
    }
  }

  // Adds 32 columns of V: two tiles of O. `low` holds them for eight keys, `high` for the others.
  static OCTAVO_DEVICE void add_chunk_of_v(State& state, const FragmentB& w, int chunk, u32 low,
                                           u32 high) {
    OCTAVO_UNROLL
    for (int i = 0; i < 2; ++i) {
      const u32 x = low >> (i * 8), y = high >> (i * 8);
      const FragmentA v{{x & Base::kLow, x & Base::kHigh, y & Base::kLow, y & Base::kHigh}};
      add_transposed(state.o[0][chunk * 2 + i],
                     [&](float(&o)[4]) { Operands::mma_pv(o, v, w.r, o); });
    }
  }
};

}  // namespace octavo::decode
