// SPDX-License-Identifier: Apache-2.0
// The two products of a step with an int4 cache, s = q k^T and o += p v. The formulas are in
// int4_numerics.cuh, the order of the channels in operands.cuh.
//
// Each register that ldmatrix loads holds 32 channels of eight keys over the warp: eight channels
// of one key in each lane (K), or four channels of two keys (V, transposed). One shift and four
// ANDs make four fragments of it.
#pragma once

#include "device/decode/geometry.cuh"

namespace octavo::decode {

template <class G>
struct ProductsInt4 {
  using Thread = typename G::Thread;
  using Scores = typename G::Scores;
  using State = typename G::State;
  using Operands = typename G::Operands;
  static constexpr DecodeConfig C = G::C;
  static constexpr int kTilesM = G::kTilesM, kTilesN = G::kTilesN, kTilesD = G::kTilesD;
  static constexpr u32 kGroups = kv_groups(C), kGroupRows = group_rows(C);
  static constexpr u32 kLow = 0x000f000fu, kHigh = 0x00f000f0u;
  static constexpr int kChunks = C.head_dim / 32;  // registers of a row
  static_assert(kChunks % 2 == 0, "ldmatrix loads two chunks of sixteen keys");

  // s = q k^T, group by group. The sums begin with the terms of the zeros; then each group adds
  // scale * (q n).
  static OCTAVO_DEVICE void qk_gemm(Scores& scores, const typename G::Q& q, const Thread& thread,
                                    int stage) {
    const u32 first_key = thread.warp * C.block_n;
    const auto lane = Operands::lane(G::k_tile(stage), first_key, thread.lane);
    OCTAVO_UNROLL
    for (int n = 0; n < kTilesN; n += 4) add_zeros_of_k(scores, q, thread, stage, n);
    OCTAVO_UNROLL
    for (int n = 0; n < kTilesN; n += 2) {
      OCTAVO_UNROLL
      for (int pair = 0; pair < kChunks / 2; ++pair) {
        u32 k[4];  // eight keys, the next eight; then the same of the second chunk
        ptx::ldmatrix_x4(k, lane.at(static_cast<u32>(n * 8), static_cast<u32>(pair * 2)));
        OCTAVO_UNROLL
        for (int i = 0; i < 2; ++i) {
          const u32 tile = static_cast<u32>(n + i);
          if constexpr (C.group == 64) {
            const u32 words[2] = {k[i], k[2 + i]};
            add_group(scores, q, thread, stage, tile, static_cast<u32>(pair), words);
          } else {
            const u32 first[1] = {k[i]}, second[1] = {k[2 + i]};
            add_group(scores, q, thread, stage, tile, static_cast<u32>(pair * 2), first);
            add_group(scores, q, thread, stage, tile, static_cast<u32>(pair * 2 + 1), second);
          }
        }
      }
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
      FragmentA w[kTilesM];
      OCTAVO_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        OCTAVO_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float(&s)[4] = weights.s[m][step * 2 + i / 2];
          w[m].r[i] = Operands::pack_pair(s[i % 2 * 2], s[i % 2 * 2 + 1]);
        }
      }
      u32 zeros[2];
      ptx::ldmatrix_x2(zeros, zeros_row(stage, key, 3 * kGroups, thread.lane));
      OCTAVO_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        auto& o = state.o[m][kTilesD];
        Operands::mma_pv(o, w[m], zeros, o);
      }
      FragmentA scaled[kTilesM];
      for_each_chunk_of_v(lane, step, [&](int chunk, u32 low, u32 high) {
        if (chunk * 32 % C.group == 0)
          scale_weights(scaled, w, thread, stage, key, static_cast<u32>(chunk * 32 / C.group));
        add_chunk(state, scaled, chunk, low, high);
      });
    }
  }

 protected:
  // Loads the values of sixteen keys, and calls use(chunk, low, high) for each 32 columns: `low`
  // holds them for eight keys, `high` for the others.
  template <class Lane, class Use>
  static OCTAVO_DEVICE void for_each_chunk_of_v(const Lane& lane, int step, Use&& use) {
    OCTAVO_UNROLL
    for (int pair = 0; pair < kChunks / 2; ++pair) {
      u32 v[4];  // eight keys, the next eight; then the same of the second chunk
      ptx::ldmatrix_x4_trans(v, lane.at(static_cast<u32>(step * 16), static_cast<u32>(pair * 2)));
      OCTAVO_UNROLL
      for (int i = 0; i < 2; ++i) use(pair * 2 + i, v[2 * i], v[2 * i + 1]);
    }
  }

  // The address that a lane passes to ldmatrix for eight rows of scales and zeros, beginning with
  // row `first`. Rows past the last wrap around to the first: their products are not used, or are
  // multiplied by 0.
  static OCTAVO_DEVICE u32 zeros_row(int stage, u32 key, u32 first, u32 lane) {
    return G::group_row(stage, key + lane / 8 * 8, (first + lane % 8) % kGroupRows);
  }

  // Sets the scores of four tiles of keys to the sums of Q times the zeros of K.
  static OCTAVO_DEVICE void add_zeros_of_k(Scores& scores, const typename G::Q& q,
                                           const Thread& thread, int stage, int n) {
    u32 zeros[4];
    const u32 key = thread.warp * C.block_n + static_cast<u32>(n * 8);
    ptx::ldmatrix_x4_trans(zeros, zeros_row(stage, key, kGroups, thread.lane));
    OCTAVO_UNROLL
    for (int i = 0; i < 4; ++i) {
      const u32 b[2] = {zeros[i], zeros[i]};
      OCTAVO_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        auto& s = scores.s[m][n + i];
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) s[e] = 0;
        Operands::mma_qk(s, q.sums[m], b, s);
      }
    }
  }

  // Adds what a group of channels contributes to the scores of a tile of keys. `words` are the
  // registers of its chunks.
  template <int kWords>
  static OCTAVO_DEVICE void add_group(Scores& scores, const typename G::Q& q, const Thread& thread,
                                      int stage, u32 tile, u32 group, const u32 (&words)[kWords]) {
    const u32 row = G::group_row(stage, thread.warp * C.block_n + tile * 8, group);
    float scale[2];
    ptx::f32_from_f16x2(scale[0], scale[1], load_pair(row, thread.lane));
    float sum[kTilesM][4] = {};
    OCTAVO_UNROLL
    for (int i = 0; i < kWords; ++i) {
      OCTAVO_UNROLL
      for (int half = 0; half < 2; ++half) {
        const u32 word = words[i] >> (half * 8);
        const u32 b[2] = {word & kLow, word & kHigh};
        const int step = (static_cast<int>(group) * kWords + i) * 2 + half;
        OCTAVO_UNROLL
        for (int m = 0; m < kTilesM; ++m)
          Operands::mma_qk(sum[m], q.fragment(m, step, thread), b, sum[m]);
      }
    }
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int e = 0; e < 4; ++e) {
        float& s = scores.s[m][tile][e];
        s = ptx::fused_multiply_add(sum[m][e], scale[e % 2], s);
      }
    }
  }

  // Loads a scale or zero of each of the lane's two keys in a group of eight.
  static OCTAVO_DEVICE u32 load_pair(u32 row, u32 lane) {
    return ptx::bits_of(ptx::load_shared_f32(row + lane % 4 * 4));
  }

  // P times the scales of V of a group.
  static OCTAVO_DEVICE void scale_weights(FragmentA (&scaled)[kTilesM],
                                          const FragmentA (&w)[kTilesM], const Thread& thread,
                                          int stage, u32 key, u32 group) {
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      const u32 row = G::group_row(stage, key + static_cast<u32>(half * 8), 2 * kGroups + group);
      const u32 scale = load_pair(row, thread.lane);
      OCTAVO_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        OCTAVO_UNROLL
        for (int i = half * 2; i < half * 2 + 2; ++i)
          scaled[m].r[i] = ptx::fma_f16x2(w[m].r[i], scale, 0);
      }
    }
  }

  // Adds 32 columns of V: four tiles of O. `low` holds them for eight keys, `high` for the others.
  static OCTAVO_DEVICE void add_chunk(State& state, const FragmentA (&w)[kTilesM], int chunk,
                                      u32 low, u32 high) {
    OCTAVO_UNROLL
    for (int i = 0; i < 4; ++i) {
      const u32 mask = i % 2 == 0 ? kLow : kHigh;
      const u32 b[2] = {low >> (i / 2 * 8) & mask, high >> (i / 2 * 8) & mask};
      OCTAVO_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        auto& o = state.o[m][chunk * 4 + i];
        Operands::mma_pv(o, w[m], b, o);
      }
    }
  }
};

}  // namespace octavo::decode
