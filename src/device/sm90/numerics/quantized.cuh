// SPDX-License-Identifier: Apache-2.0
// Scales of 8-bit Q and K, for all numerics that have them: how they get from memory to the scores.
//
//   scale of                        applied
//   rows of Q, and a head of K      in each row's multiplier
//   blocks of K (KScales::block)    in the softmax, from registers
//   rows of K (KScales::row)        multiplied into the scores
#pragma once

#include "device/ptx/memory.cuh"
#include "device/ptx/wgmma_f8.cuh"
#include "device/ptx/wgmma_s8.cuh"
#include "device/sm90/block_mask.cuh"
#include "device/sm90/gemm.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/loads.cuh"
#include "device/sm90/softmax.cuh"

namespace octavo::sm90 {

// An array that may have no elements.
template <class T, int kCount>
struct Registers {
  T x[kCount];
};
template <class T>
struct Registers<T, 0> {};

template <class G>
struct QuantizedQk {
  static constexpr Sm90ForwardConfig C = G::C;
  // KScales::block: the scales of K in registers, and how many groups of eight columns each is for.
  static constexpr int kKScales = C.k_scales == KScales::block ? k_scales_per_block(C) : 0;
  static constexpr int kScaleGroups = kKScales > 0 ? kKScales : 1;
  static constexpr int kGroupN8 = G::kScoreN8 / kScaleGroups;
  static_assert(scaled_keys(C) == 0 || C.block_n % scaled_keys(C) == 0,
                "a block has whole groups of keys that share a scale");
  using KScaleRegisters = Registers<float, kKScales>;
  static constexpr bool kMergesSignAndMask = true;
  template <class Scores>
  static OCTAVO_DEVICE void after_hiding(Scores&) {}

  static OCTAVO_DEVICE void wait_for_scales() { wait_for_written_scales<G>(); }

  // The scales of the thread's rows of Q, and of K if it has one for each head.
  struct RowScales {
    float of_head, of_row[2];
  };
  template <class TileOf>
  static OCTAVO_DEVICE RowScales load_row_scales(const Sm90ForwardParams& params,
                                                 TileOf&& tile_of) {
    const typename G::RowTile tile = tile_of();
    const Sm90Forward8BitParams& p = G::params_8bit(params);
    const ScaleParams& q = p.q_scales;
    const ScaleParams& k = p.k_scales;
    RowScales scales;
    scales.of_head = 1;
    if constexpr (scaled_keys(C) == 0)
      scales.of_head = ptx::load_written_f32(k.data + tile.sequence * k.batch +
                                             p.by_heads_per_kv.quotient(tile.head) * k.head);
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      const i32 row =
          (q.by_token ? tile.span.q_begin : 0) + min_of(tile.query(p, r), tile.span.seqlen_q - 1);
      i32 head = tile.head;
      // Rows after the last head that shares these keys are not stored.
      if (C.pack_gqa) head += min_of(G::head_of(p, tile.row(r)), p.heads_per_kv - 1);
      scales.of_row[r] =
          ptx::load_written_f32(q.data + tile.sequence * q.batch + head * q.head +
                                static_cast<i64>(p.by_q_block_rows.quotient(row)) * q.stride);
    }
    return scales;
  }
  // From a raw score to log2 units, except for scales of K's blocks or rows.
  static OCTAVO_DEVICE void set_multipliers(float (&multiplier)[2], float scale_log2,
                                            const RowScales& scales) {
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r) multiplier[r] = scale_log2 * scales.of_head * scales.of_row[r];
  }

  // kThreads threads load the scales of a block of keys, from key n on or of listed blocks, into a
  // stage, together with K: reading them from global memory in the consumers doubled the time.
  template <int kThreads, class Keys>
  static OCTAVO_DEVICE void load_k_scales(const Sm90ForwardParams& params, const SequenceSpan& span,
                                          i32 sequence, const Keys& n, i32 head, u32 stage,
                                          u32 thread) {
    const Sm90Forward8BitParams& p = G::params_8bit(params);
    const ScaleParams& k = p.k_scales;
    const float* const scales = k.data + sequence * k.batch + head * k.head;
    const i32 token = k.by_token ? span.kv_begin : 0;
    OCTAVO_UNROLL
    for (u32 i = 0; i < k_scales_per_block(C); i += kThreads) {
      if (i + thread >= k_scales_per_block(C)) break;
      const i32 key = key_at<G>(n, static_cast<i32>(i + thread) * scaled_keys(C));
      const i32 row = token + min_of(key, span.seqlen_kv - 1);
      ptx::store_shared_f32(
          G::k_scales(stage) + (i + thread) * 4,
          ptx::load_written_f32(scales +
                                static_cast<i64>(p.by_k_block_rows.quotient(row)) * k.stride));
    }
  }

  // Reads the scales of blocks from the stage into registers.
  static OCTAVO_DEVICE void read_k_scales([[maybe_unused]] KScaleRegisters& scales,
                                          [[maybe_unused]] u32 stage) {
    if constexpr (kKScales > 0) {
      OCTAVO_UNROLL
      for (int i = 0; i < kKScales; ++i)
        scales.x[i] = ptx::load_shared_f32(G::k_scales(stage) + i * 4);
    }
  }
  // Multiplies FP32 scores by the scales of their rows of K.
  static OCTAVO_DEVICE void multiply_k_scales([[maybe_unused]] float* s, [[maybe_unused]] u32 stage,
                                              [[maybe_unused]] u32 lane) {
    if constexpr (C.k_scales == KScales::row) {
      const u32 scales = G::k_scales(stage) + lane % 4 * 8;
      OCTAVO_UNROLL
      for (int i = 0; i < G::kScoreN8; ++i) {
        u32 low, high;
        ptx::load_shared_b64(scales + i * 32, low, high);
        const float scale[2] = {ptx::float_of_bits(low), ptx::float_of_bits(high)};
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) s[i * 4 + e] *= scale[e % 2];
      }
    }
  }
  static OCTAVO_DEVICE float k_scale_of([[maybe_unused]] const KScaleRegisters& scales,
                                        [[maybe_unused]] int n8) {
    if constexpr (kKScales > 0) return scales.x[n8 * 8 / scaled_keys(C)];
    return 1.0f;
  }
  // The maximum over the groups of keys that share a scale, each multiplied by its scale.
  template <class OfGroup>
  static OCTAVO_DEVICE float max_over_groups([[maybe_unused]] const KScaleRegisters& scales,
                                             OfGroup&& of_group) {
    float largest = of_group(0) * k_scale_of(scales, 0);
    OCTAVO_UNROLL
    for (int g = 1; g < kScaleGroups; ++g)
      largest = ptx::max_f32(largest, of_group(g) * k_scale_of(scales, g * kGroupN8));
    return largest;
  }
};

// S = Q K^T of 8-bit Q and K with an FP32 softmax; for INT8 only with 16-bit V.
template <class G>
struct QuantizedF32Qk : QuantizedQk<G> {
  using Base = QuantizedQk<G>;
  static constexpr Sm90ForwardConfig C = G::C;
  static constexpr bool kInt8 = C.element == Element::int8;
  struct Scores {
    float s[G::kScores];
    Registers<i32, kInt8 ? G::kScores : 0> sums;  // the tensor cores' results
    typename Base::KScaleRegisters k_scales;
  };
  struct Rows : RowState {
    float threshold[2];  // the raw score at which ref_max rises; -infinity before the first key
    float multiplier[2];
  };

  static OCTAVO_DEVICE auto& accumulator(Scores& scores) {
    if constexpr (kInt8)
      return scores.sums.x;
    else
      return scores.s;
  }
  static OCTAVO_DEVICE void qk(Scores& scores, u32 q, u32 stage) {
    for_each_qk_step<G>(q, stage, [&](u64 a, u64 b, int step) {
      if constexpr (kInt8)
        ptx::wgmma_s8(scores.sums.x, a, b, step > 0);
      else if constexpr (C.element == Element::e4m3)
        ptx::wgmma_e4m3(scores.s, a, b, step > 0);
      else
        ptx::wgmma_e5m2(scores.s, a, b, step > 0);
    });
  }
  static OCTAVO_DEVICE void start_accumulator_bias(Scores&) {}
  template <int kPending>
  static OCTAVO_DEVICE void finish_accumulator_bias(Scores&) {}
  static OCTAVO_DEVICE void finish_qk(Scores& scores, u32 stage, u32 lane) {
    if constexpr (kInt8) {
      OCTAVO_UNROLL
      for (int i = 0; i < G::kScores; ++i) scores.s[i] = ptx::float_of_int(scores.sums.x[i]);
      ptx::pin(scores.s);  // or the compiler keeps both
    }
    Base::multiply_k_scales(scores.s, stage, lane);
    Base::read_k_scales(scores.k_scales, stage);
  }

  static OCTAVO_DEVICE float multiplier(const Rows& rows, int r, float /*scale_log2*/,
                                        float /*row_level*/) {
    return rows.multiplier[r];
  }
  static OCTAVO_DEVICE float k_scale(const Scores& scores, int n8) {
    return Base::k_scale_of(scores.k_scales, n8);
  }
  static OCTAVO_DEVICE float headroom_used(float, float, float) { return 0; }

  struct Largest {
    float thread_max[2];
  };
  static OCTAVO_DEVICE bool exceeds_threshold(const Scores& scores, const Rows& rows,
                                              Largest& largest, bool /*first*/) {
    bool exceeds = false;
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r) {
      largest.thread_max[r] = Base::max_over_groups(scores.k_scales, [&](int g) {
        return thread_max<Base::kGroupN8>(scores.s, r, g * Base::kGroupN8);
      });
      exceeds = exceeds || largest.thread_max[r] >= rows.threshold[r];
    }
    return ptx::warp_any(exceeds);
  }
  static OCTAVO_DEVICE float thread_max_of(const Scores&, const Largest& largest, int r) {
    return largest.thread_max[r];
  }

  static OCTAVO_DEVICE void apply_mask(Scores& scores, const Sm90ForwardParams& p,
                                       const typename G::RowTile& tile, i32 n) {
    mask_f32<G>(scores.s, p, tile, n);
  }
  static OCTAVO_DEVICE void negate(Scores& scores) {
    OCTAVO_UNROLL
    for (float& s : scores.s) s = -s;
  }
  static OCTAVO_DEVICE void init_rows(Rows& rows, float scale_log2,
                                      const typename Base::RowScales& scales) {
    OCTAVO_UNROLL
    for (int r = 0; r < 2; ++r) {
      rows.threshold[r] = -kInfinity;
      rows.ref_max[r] = kLowest;
      rows.sum[r] = 0;
    }
    Base::set_multipliers(rows.multiplier, scale_log2, scales);
  }
};

}  // namespace octavo::sm90
