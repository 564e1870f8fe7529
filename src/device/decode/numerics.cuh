// SPDX-License-Identifier: Apache-2.0
// Numerics policies of the decode kernel: how it handles the scales of the KV cache. A 16-bit cache
// has none, an 8-bit cache has scales of K and V, and an int4 cache has scales and zeros of groups
// of channels (int4_numerics.cuh). The conversion of elements to mma operands is in operands.cuh.
//
// The policies have the same members:
//   kRescaleLog2    O is rescaled only when a maximum grows by 2^this
//   convert_row     converts a row of Q, if G::kConvertsQ
//   KvScales        where the scales of a sequence and KV head are; copies those of a warp's keys
//   k_head_scale    K's scale, if it is one per head; else 1
//   has_k_scales    whether K has a scale for each key
//   k_key_scale     K's scale of the thread's key i, if each key has one
//   PWeights        adds P to the row's sum and multiplies it by V's scale of the key, if each key
//                   has one
//   finish_o        completes the O of a warp, which other warps have not been added to yet
//   scale_o         multiplies O by V's scale, if it is one per head or channel
#pragma once

#include "device/core/divider.cuh"
#include "device/decode/geometry.cuh"
#include "device/ptx/fragment.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/memory.cuh"

namespace octavo::decode {

template <class G>
struct Numerics16 {
  using Thread = typename G::Thread;
  static constexpr float kRescaleLog2 = 8;

  struct KvScales {
    OCTAVO_DEVICE KvScales(const Params&, const Cursor&) {}
    template <class Rows>
    OCTAVO_DEVICE void copy(const Params&, const Rows&, int /*stage*/, u32 /*to*/,
                            u32 /*lane*/) const {}
  };
  static OCTAVO_DEVICE float k_head_scale(const Params&, const WorkTile&) { return 1.0f; }
  static OCTAVO_DEVICE constexpr bool has_k_scales(const Params&) { return false; }
  static OCTAVO_DEVICE float k_key_scale(int /*stage*/, const Thread&, int /*i*/) { return 1.0f; }

  struct PWeights {
    OCTAVO_DEVICE PWeights(typename G::Scores&, const Params&, const Thread&, int /*stage*/) {}
    OCTAVO_DEVICE float add(float& sum, float weight, int /*i*/) const {
      sum += weight;
      return weight;
    }
  };
  static OCTAVO_DEVICE void finish_o(typename G::State&, const Thread&) {}
  template <int kTiles>
  static OCTAVO_DEVICE void scale_o(float (&)[kTiles][2], const Params&, const WorkTile&,
                                    const Thread&) {}
};

// Calls visit(pair, step, part) for each pair of elements of a row of Q that the thread holds.
template <class G, class Visit>
OCTAVO_DEVICE void for_each_pair(typename G::QFragments& q, int m, int r, const Visit& visit) {
  OCTAVO_UNROLL
  for (int step = 0; step < G::kQkSteps; ++step) {
    visit(q.a[m][step].r[r], step, 0);
    visit(q.a[m][step].r[2 + r], step, 1);
  }
}

template <Element kElement>
OCTAVO_DEVICE void unpack_pair(float& low, float& high, u32 pair) {
  if constexpr (kElement == Element::bf16) {
    low = ptx::float_of_bits(pair << 16);
    high = ptx::float_of_bits(pair & 0xffff0000u);
  } else {
    ptx::f32_from_f16x2(low, high, pair);
  }
}

// The largest magnitude in a row of Q.
template <class G>
OCTAVO_DEVICE float row_amax(typename G::QFragments& q, int m, int r) {
  float amax = 0;
  for_each_pair<G>(q, m, r, [&amax](u32& pair, int, int) {
    float low, high;
    unpack_pair<G::C.element>(low, high, pair);
    amax = ptx::max_f32(amax, ptx::max_f32(ptx::abs_f32(low), ptx::abs_f32(high)));
  });
  return quad_max(amax);
}

// Sets the scale of row whole_row(m, r) of Q, which all lanes that hold the row know. The
// transposed scores of a thread are in other rows.
template <class G>
OCTAVO_DEVICE void set_row_scale(typename G::QFragments& q, int m, int r, float scale, u32 lane) {
  if constexpr (!G::kTransposed) {
    q.scale[m][r] = scale;
  } else {
    OCTAVO_UNROLL
    for (u32 row = 0; row < 2; ++row)
      q.scale[m][row] = ptx::shuffle_from(scale, (lane % 4 * 2 + row) * 4);
  }
}

template <class G>
struct Numerics8Bit {
  using Thread = typename G::Thread;
  using Operands = typename G::Operands;
  static constexpr DecodeConfig C = G::C;
  static constexpr int kTilesM = G::kTilesM, kKeys = G::kKeys;
  static constexpr float kRescaleLog2 = 8;

  // Converts a row of Q from BF16 to FP16, divided by the power of two of its largest element.
  static OCTAVO_DEVICE void convert_row(typename G::QFragments& q, int m, int r, u32 lane) {
    const float amax = row_amax<G>(q, m, r);
    // The clamp keeps both the power of two and its inverse normal numbers.
    const u32 exponent = min_of(max_of(ptx::bits_of(amax) >> 23, 1u), 253u);
    const float inverse = ptx::float_of_bits((254u - exponent) << 23);
    set_row_scale<G>(q, m, r, ptx::float_of_bits(exponent << 23), lane);
    for_each_pair<G>(q, m, r, [inverse](u32& pair, int, int) {
      float low, high;
      unpack_pair<G::C.element>(low, high, pair);
      pair = ptx::f16x2_from_f32(low * inverse, high * inverse);
    });
  }

  // --- copies -----------------------------------------------------------------------------------

  struct KvScales {
    const float *k, *v;

    OCTAVO_DEVICE KvScales(const Params& p, const Cursor& at) {
      k = of_head(p, p.k_scales, at.sequence, at.kv_head);
      v = of_head(p, p.v_scales, at.sequence, at.kv_head);
    }
    // Starts copying the scales of a warp's keys, which are at `rows` of the cache (Loads::Rows),
    // to key `to` of a stage. A lane copies the scales of one key of 32.
    template <class Rows>
    OCTAVO_DEVICE void copy(const Params& p, const Rows& rows, int stage, u32 to, u32 lane) const {
      if (!p.k_scale_per_key && !p.v_scale_per_key) return;
      OCTAVO_UNROLL
      for (int first = 0; first < C.block_n; first += 32) {
        const u32 key = static_cast<u32>(first) + lane;
        const auto place = rows.place(p, min_of(key, C.block_n - 1u) / 16);
        if (key >= C.block_n) continue;
        const i32 row = place.row + static_cast<i32>(lane % 16);
        const bool exists = static_cast<i32>(key) < rows.left;
        if (p.k_scale_per_key)
          copy_scale(G::k_scale(stage, to + key), k, p.k_scales, p.by_k_scale_rows, place.page, row,
                     exists);
        if (p.v_scale_per_key)
          copy_scale(G::v_scale(stage, to + key), v, p.v_scales, p.by_v_scale_rows, place.page, row,
                     exists);
      }
    }
  };
  // The first scale of a sequence and head; in a paged cache, of the head in page 0.
  static OCTAVO_DEVICE const float* of_head(const Params& p, const ScaleParams& scales,
                                            i32 sequence, i32 kv_head) {
    const i64 batch = p.paging.table == nullptr ? sequence : 0;
    return scales.data + batch * scales.batch + kv_head * scales.head;
  }
  // The scale of a key that does not exist becomes 0.
  static OCTAVO_DEVICE void copy_scale(u32 to, const float* head, const ScaleParams& scales,
                                       const Divider& by_rows, u32 page, i32 row, bool exists) {
    const u64 in_page = static_cast<u64>(static_cast<i64>(by_rows.quotient(row)) * scales.stride);
    const u64 index = page * static_cast<u64>(scales.batch) + in_page;
    ptx::cp_async_narrow<4>(to, head + index, exists);
  }

  // --- scores -----------------------------------------------------------------------------------

  static OCTAVO_DEVICE float k_head_scale(const Params& p, const WorkTile& work) {
    if (p.k_scale_per_key) return 1.0f;
    return ptx::load_global_f32(of_head(p, p.k_scales, work.sequence, work.kv_head));
  }
  static OCTAVO_DEVICE bool has_k_scales(const Params& p) { return p.k_scale_per_key != 0; }
  static OCTAVO_DEVICE float k_key_scale(int stage, const Thread& thread, int i) {
    return ptx::load_shared_f32(G::k_scale(stage, thread.key(i)));
  }

  // Applies V's scale of each key to P. The logarithm of the scale is added to the score before the
  // softmax, so that P stays near 1 whatever the scales are. The row sum adds up P without the
  // scale.
  struct PWeights {
    float inverse[kKeys];  // of the scale's magnitude: what a weight adds to the sum
    u32 sign[kKeys];

    // A scale of 0 is replaced by 2^-100, with which the value vanishes.
    OCTAVO_DEVICE PWeights(typename G::Scores& scores, const Params& p, const Thread& thread,
                           int stage) {
      OCTAVO_UNROLL
      for (int i = 0; i < kKeys; ++i) {
        inverse[i] = 1;
        sign[i] = 0;
      }
      if (!p.v_scale_per_key) return;
      OCTAVO_UNROLL
      for (int i = 0; i < kKeys; ++i) {
        const float scale = ptx::load_shared_f32(G::v_scale(stage, thread.key(i)));
        const float magnitude = ptx::max_f32(ptx::abs_f32(scale), 7.9e-31f);
        inverse[i] = ptx::reciprocal_approx(magnitude);
        sign[i] = ptx::bits_of(scale) & 0x80000000u;
        const float log2 = ptx::log2_approx(magnitude);
        OCTAVO_UNROLL
        for (int m = 0; m < kTilesM; ++m) {
          OCTAVO_UNROLL
          for (int r = 0; r < 2; ++r) scores.at(m, r, i) += log2;
        }
      }
    }
    OCTAVO_DEVICE float add(float& sum, float weight, int i) const {
      sum = ptx::fused_multiply_add(weight, inverse[i], sum);
      return ptx::float_of_bits(ptx::bits_of(weight) ^ sign[i]);
    }
  };

  // --- output -----------------------------------------------------------------------------------

  static OCTAVO_DEVICE void finish_o(typename G::State&, const Thread&) {}

  // `o`: the warp's kTiles tiles of columns of one row.
  template <int kTiles>
  static OCTAVO_DEVICE void scale_o(float (&o)[kTiles][2], const Params& p, const WorkTile& work,
                                    const Thread& thread) {
    if (p.v_scale_per_key) return;
    const float* const scales = of_head(p, p.v_scales, work.sequence, work.kv_head);
    OCTAVO_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      OCTAVO_UNROLL
      for (int e = 0; e < 2; ++e) {
        const u32 tile = thread.warp * kTiles + static_cast<u32>(n);
        const i32 column =
            min_of(static_cast<i32>(Operands::column(tile, e, thread.lane)), p.head_dim - 1);
        o[n][e] *= ptx::load_global_f32(scales + column * p.v_scales.stride);
      }
    }
  }
};

}  // namespace octavo::decode
