// SPDX-License-Identifier: Apache-2.0
// The numerics policy of an int4 cache. Each group of channels of a key has a scale s and a zero z,
// both in FP16:
//
//   k_c = s n_c + z      q . k = sum over groups of  s (q . n) + z (sum of q)
//   v_c = s n_c + z      o_c   = sum over keys of   (p s) n_c + p z
//
// So the scales multiply P and a group's part of the scores, and the zeros are one more column of
// both products (int4_products.cuh). No single value of K or V is scaled.
//
// The products read the bits of n as subnormal FP16 numbers, which tensor cores multiply exactly: n
// 2^-24, or n 2^-20 for every second pair of channels. Q compensates: its row is divided by the
// power of two of its largest element and multiplied by 2^14, or by 2^10 in those channels. The
// scores come out too small by a factor of 2^-10, and the columns of O by 2^-24 or 2^-20;
// k_head_scale() and finish_o() correct this.
#pragma once

#include "device/decode/numerics.cuh"
#include "device/ptx/fragment.cuh"

namespace octavo::decode {

template <class G>
struct NumericsInt4 {
  using Thread = typename G::Thread;
  static constexpr DecodeConfig C = G::C;
  static constexpr int kTilesM = G::kTilesM;
  static constexpr int kGroups = kv_groups(C);
  static constexpr u32 kGroupRows = group_rows(C);
  static_assert(kGroups <= 8, "a product has eight columns for the zeros");
  // P times a scale fits into FP16: scales are at most 2 * 65504 / 15, and P is at most 2^2.
  static constexpr float kRescaleLog2 = 2;

  // --- Q -----------------------------------------------------------------------------------------

  static OCTAVO_DEVICE void convert_row(typename G::QFragments& q, int m, int r, u32 lane) {
    const float amax = row_amax<G>(q, m, r);
    // 2^14 times the inverse of the power of two is a finite number too.
    const u32 exponent = min_of(max_of(ptx::bits_of(amax) >> 23, 32u), 253u);
    set_row_scale<G>(q, m, r, ptx::float_of_bits(exponent << 23), lane);
    const float to_units[2] = {ptx::float_of_bits((254u - exponent) << 23) * 16384.0f,
                               ptx::float_of_bits((254u - exponent) << 23) * 1024.0f};
    float sums[kGroups] = {};
    for_each_pair<G>(q, m, r, [&](u32& pair, int step, int part) {
      float low, high;
      unpack_pair<C.element>(low, high, pair);
      pair = ptx::f16x2_from_f32(low * to_units[part], high * to_units[part]);
      ptx::f32_from_f16x2(low, high, pair);
      const float unit = part == 0 ? 0x1p-24f : 0x1p-20f;  // the sum counts as scores do
      sums[step * 16 / C.group] += low * unit + high * unit;
    });
    set_sums(q, m, r, sums, lane);
  }

  // Writes the sums of Q as an A operand of sixteen columns. Column g holds the sum of group g
  // rounded to FP16, and column 8 + g what the rounding left. The other columns are 0.
  static OCTAVO_DEVICE void set_sums(typename G::QFragments& q, int m, int r,
                                     const float (&sums)[kGroups], u32 lane) {
    float own[2] = {};
    OCTAVO_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      const float sum = quad_sum(sums[g]);
      if (static_cast<u32>(g / 2) == lane % 4) own[g % 2] = sum;
    }
    const u32 rounded = ptx::f16x2_from_f32(own[0], own[1]);
    float low, high;
    ptx::f32_from_f16x2(low, high, rounded);
    q.sums[m].r[r] = rounded;
    q.sums[m].r[2 + r] = ptx::f16x2_from_f32(own[0] - low, own[1] - high);
  }

  // --- copies -----------------------------------------------------------------------------------

  // Copies the scales and zeros of a sequence and KV head. One copy of sixteen bytes has one scale
  // or zero for each of eight keys. A lane makes the same copies for every sixteen keys.
  struct KvScales {
    static constexpr u32 kCopies = 2 * kGroupRows;  // of sixteen keys
    static constexpr u32 kPerLane = div_up(kCopies, 32u);
    const u8* from[kPerLane];  // null: the lane has nothing to copy, or the group does not exist
    i64 page_bytes;

    OCTAVO_DEVICE KvScales(const Params& p, const Cursor& at) {
      const u32 lane = ptx::lane_index();
      const i64 head_bytes = static_cast<i64>(p.groups) * p.paging.page_size * 4;
      page_bytes = head_bytes * p.heads_kv;
      OCTAVO_UNROLL
      for (u32 i = 0; i < kPerLane; ++i) {
        const u32 row = (lane + i * 32) % kGroupRows, half = (lane + i * 32) / kGroupRows;
        const i32 group = static_cast<i32>(row % kGroups);
        const i32 of_zeros = static_cast<i32>(row / kGroups % 2);
        const u8* const side = row < kGroupRows / 2 ? p.k_groups : p.v_groups;
        const i64 place =
            static_cast<i64>(of_zeros * p.groups + group) * p.paging.page_size + half * 8;
        from[i] = group < p.groups ? side + at.kv_head * head_bytes + place * 2 : nullptr;
      }
    }
    template <class Rows>
    OCTAVO_DEVICE void copy(const Params& p, const Rows& rows, int stage, u32 to, u32 lane) const {
      typename Rows::Place place{};
      OCTAVO_UNROLL
      for (u32 i = 0; i < Rows::kGroups; ++i) {
        if (i > 0 && p.paging.has_whole_blocks)
          place.row += 16;
        else
          place = rows.place(p, i);
        copy_16(p, place.page, stage, to + i * 16, place.row, rows.left - static_cast<i32>(i * 16),
                lane);
      }
    }

   private:
    // Starts copying the scales and zeros of sixteen keys, beginning with row `row` of the cache,
    // to key `to` of a stage. Only `rows` of these keys exist; the others become 0.
    OCTAVO_DEVICE void copy_16(const Params& p, i64 page, int stage, u32 to, i32 row, i32 rows,
                               u32 lane) const {
      OCTAVO_UNROLL
      for (u32 i = 0; i < kPerLane; ++i) {
        const u32 place = lane + i * 32;
        if (kCopies % 32 != 0 && place >= kCopies) continue;
        const u32 half = place / kGroupRows;
        const i32 keys = min_of(max_of(rows - static_cast<i32>(half * 8), 0), 8);
        const u8* const source = from[i] + page * page_bytes + row * 2;
        ptx::cp_async_16_part(G::group_row(stage, to + half * 8, place % kGroupRows),
                              from[i] != nullptr ? source : p.k_groups,
                              from[i] != nullptr ? static_cast<u32>(keys) * 2 : 0);
      }
    }
  };

  // --- scores and output -------------------------------------------------------------------------

  static OCTAVO_DEVICE float k_head_scale(const Params&, const WorkTile&) { return 1024.0f; }
  static OCTAVO_DEVICE constexpr bool has_k_scales(const Params&) { return false; }
  static OCTAVO_DEVICE float k_key_scale(int /*stage*/, const Thread&, int /*i*/) { return 1.0f; }

  using PWeights = typename Numerics16<G>::PWeights;

  // Multiplies the columns of O by 2^24 or 2^20, and adds the zeros of V.
  static OCTAVO_DEVICE void finish_o(typename G::State& state, const Thread& thread) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        float zeros[kGroups];
        OCTAVO_UNROLL
        for (int g = 0; g < kGroups; ++g) zeros[g] = zeros_of(state.o[m][G::kOTiles], r, g, thread);
        OCTAVO_UNROLL
        for (int n = 0; n < G::kOTiles; ++n) {
          OCTAVO_UNROLL
          for (int e = 0; e < 2; ++e) {
            // Every second group of eight columns has the other unit.
            const float unit = (G::kTransposed ? e : n % 2) == 0 ? 0x1p24f : 0x1p20f;
            const int column = G::kTransposed ? n * 16 : n * 8;
            float& o = state.o[m][n][r * 2 + e];
            o = ptx::fused_multiply_add(o, unit, zeros[column / C.group]);
          }
        }
      }
    }
  }
  // The sum of a row's P times the zeros of a group, from the tile after O.
  static OCTAVO_DEVICE float zeros_of(const float (&tile)[4], int r, int g, const Thread& thread) {
    if constexpr (G::kTransposed)
      return ptx::shuffle_from(tile[r * 2], static_cast<u32>(g * 4) + thread.lane % 4);
    const bool is_own = thread.lane % 4 == static_cast<u32>(g / 2);
    return quad_sum(is_own ? tile[r * 2 + g % 2] : 0.0f);
  }
  template <int kTiles>
  static OCTAVO_DEVICE void scale_o(float (&)[kTiles][2], const Params&, const WorkTile&,
                                    const Thread&) {}
};

}  // namespace octavo::decode
