// SPDX-License-Identifier: Apache-2.0
// O in the type of the output: how values are packed, and stores from registers. A thread holds two
// of every eight columns, in two rows; lanes exchange words so that each stores 16 bytes (8 in
// 8-bit) of one row.
#pragma once

#include "device/core/output.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "device/sm90/geometry.cuh"

namespace octavo::sm90 {

OCTAVO_DEVICE u32 exchange_word(u32 x, int lane_mask) {
  return ptx::bits_of(ptx::shuffle_xor(ptx::float_of_bits(x), lane_mask));
}
// A 4 x 4 transpose over the four lanes of a row: afterwards lane i has word i of lanes 0 to 3.
OCTAVO_DEVICE void transpose_quad(u32 (&x)[4], u32 lane) {
  OCTAVO_UNROLL
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool upper = (lane & bit) != 0;
    OCTAVO_UNROLL
    for (int i = 0; i < 4; ++i) {
      if ((i & bit) != 0) continue;
      const u32 received = exchange_word(upper ? x[i] : x[i + bit], bit);
      if (upper)
        x[i] = received;
      else
        x[i + bit] = received;
    }
  }
}
// The same for 16-bit halves: x[0] holds halves 0 and 1, x[1] halves 2 and 3.
OCTAVO_DEVICE void transpose_quad_halves(u32 (&x)[2], u32 lane) {
  constexpr u32 kLowHalves = 0x5410, kHighHalves = 0x7632;
  const bool upper = (lane & 2) != 0, odd = (lane & 1) != 0;
  const u32 received = exchange_word(upper ? x[0] : x[1], 2);
  const u32 low = upper ? received : x[0];   // of lane 0 or 1,
  const u32 high = upper ? x[1] : received;  // and of lane 2 or 3
  const u32 kept = ptx::permute_bytes(low, high, odd ? kHighHalves : kLowHalves);
  const u32 theirs =
      exchange_word(ptx::permute_bytes(low, high, odd ? kLowHalves : kHighHalves), 1);
  const u32 first = odd ? theirs : kept, second = odd ? kept : theirs;
  x[0] = ptx::permute_bytes(first, second, kLowHalves);
  x[1] = ptx::permute_bytes(first, second, kHighHalves);
}

// Zeroes row r in kCount registers of O.
template <int kCount>
OCTAVO_DEVICE void clear_row(float* o, u32 r) {
  OCTAVO_UNROLL
  for (u32 i = 0; i < kCount / 2; ++i) o[i / 2 * 4 + r * 2 + i % 2] = 0;
}

// Addresses and parameters, shared by the three kinds of output.
template <class G>
struct OutputAddress {
  using RowTile = typename G::RowTile;
  static constexpr Sm90ForwardConfig C = G::C;

  static OCTAVO_DEVICE const OutputParams& params(const Sm90ForwardParams& p) {
    return static_cast<const Sm90ForwardOutputParams&>(p).output;
  }
  static OCTAVO_DEVICE u8* row_address(const Sm90ForwardParams& p, const RowTile& tile, i32 row) {
    return static_cast<u8*>(p.out) +
           (tile.batch * p.o_strides.batch + tile.head * p.o_strides.head +
            G::tensor_row(p, tile.span, row) * p.o_strides.row + tile.first_column) *
               element_bytes(C.output.element);
  }
  // How many columns exist from `first` on; 0 in a row that is not stored.
  static OCTAVO_DEVICE i32 columns_left(const Sm90ForwardParams& p, const RowTile& tile, i32 row,
                                        i32 first) {
    return row < G::stored_rows(p, tile.span) ? p.head_dim_v - tile.first_column - first : 0;
  }
  // The tile's columns that exist.
  static OCTAVO_DEVICE i32 columns(const Sm90ForwardParams& p, const RowTile& tile) {
    return column_tiles(C) > 1 ? min_of(p.head_dim_v - tile.first_column, v_columns(C))
                               : p.head_dim_v;
  }
  // 16-bit and FP32 outputs have no scale.
  static OCTAVO_DEVICE float inverse_scale(const Sm90ForwardParams&, const RowTile&) { return 1; }
};

// FP16 and BF16.
template <class G, int kBytes>
struct OutputElementOf : OutputAddress<G> {
  using Base = OutputAddress<G>;
  using RowTile = typename G::RowTile;
  static constexpr Element kElement = G::C.output.element;

  static OCTAVO_DEVICE u32 pack(float low, float high, float /*inverse*/ = 1) {
    return kElement == Element::f16 ? ptx::f16x2_from_f32(low, high)
                                    : ptx::bf16x2_from_f32(low, high);
  }
  static OCTAVO_DEVICE void store_pair(u8* to, float low, float high, float /*inverse*/ = 1) {
    ptx::store_global_b32(to, pack(low, high));
  }
  // Two packed pairs that are neighbours.
  static OCTAVO_DEVICE void store_two_pairs(u8* to, u32 first, u32 second) {
    ptx::store_global_b64(to, first, second);
  }
  // Each of the four lanes of a row stores eight columns of 32.
  static OCTAVO_DEVICE void store_tile(const float* o, const Sm90ForwardParams& p,
                                       const RowTile& tile) {
    const i32 first = static_cast<i32>(tile.lane % 4 * 8);
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      const i32 row = tile.row(r);
      const i32 columns = Base::columns_left(p, tile, row, first);
      u8* const out = Base::row_address(p, tile, row) + first * 2;
      OCTAVO_UNROLL
      for (int i = 0; i < G::kORegisters / 4; i += 4) {
        u32 x[4];
        OCTAVO_UNROLL
        for (int b = 0; b < 4; ++b) x[b] = pack(o[(i + b) * 4 + r * 2], o[(i + b) * 4 + r * 2 + 1]);
        transpose_quad(x, tile.lane);
        if (i * 8 < columns) ptx::store_global_b128(out + i * 8 * 2, x);
      }
      if (column_tiles(G::C) > 1) {
        ptx::spare("it keeps the compiler from mixing the two rows, for which it would spill");
        ptx::warp_sync();
      }
    }
  }
};

// 8-bit, quantized with the caller's scale.
template <class G>
struct OutputElementOf<G, 1> : OutputAddress<G> {
  using Base = OutputAddress<G>;
  using RowTile = typename G::RowTile;
  static constexpr Element kElement = G::C.output.element;

  static OCTAVO_DEVICE float inverse_scale(const Sm90ForwardParams& p, const RowTile& tile) {
    return inverse_out_scale(Base::params(p), tile.sequence, tile.head);
  }
  static OCTAVO_DEVICE u32 pack(float low, float high, float inverse = 1) {
    return quantize_pair<kElement>(low, high, inverse);
  }
  static OCTAVO_DEVICE void store_pair(u8* to, float low, float high, float inverse = 1) {
    ptx::store_global_b16(to, static_cast<u16>(pack(low, high, inverse)));
  }
  static OCTAVO_DEVICE void store_two_pairs(u8* to, u32 first, u32 second) {
    ptx::store_global_b32(to, first | second << 16);
  }
  static OCTAVO_DEVICE void store_tile(const float* o, const Sm90ForwardParams& p,
                                       const RowTile& tile) {
    const float inverse = inverse_scale(p, tile);
    const i32 first = static_cast<i32>(tile.lane % 4 * 8);
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      const i32 row = tile.row(r);
      const i32 columns = Base::columns_left(p, tile, row, first);
      u8* const out = Base::row_address(p, tile, row) + first;
      OCTAVO_UNROLL
      for (int i = 0; i < G::kORegisters / 4; i += 4) {
        u32 pairs[4];
        OCTAVO_UNROLL
        for (int b = 0; b < 4; ++b)
          pairs[b] = pack(o[(i + b) * 4 + r * 2], o[(i + b) * 4 + r * 2 + 1], inverse);
        u32 x[2] = {pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16};
        transpose_quad_halves(x, tile.lane);
        if (i * 8 < columns) ptx::store_global_b64(out + i * 8, x[0], x[1]);
      }
    }
  }
};

// FP32.
template <class G>
struct OutputElementOf<G, 4> : OutputAddress<G> {
  using Base = OutputAddress<G>;
  using RowTile = typename G::RowTile;

  static OCTAVO_DEVICE void store_pair(u8* to, float low, float high, float /*inverse*/ = 1) {
    ptx::store_global_b64(to, ptx::bits_of(low), ptx::bits_of(high));
  }
  // Two lanes share four columns of each eight, in two rows: the even lane stores those of the
  // first row, the odd one those of the second.
  static OCTAVO_DEVICE void store_tile(const float* o, const Sm90ForwardParams& p,
                                       const RowTile& tile) {
    const bool odd = tile.lane % 2 != 0;
    const i32 first = static_cast<i32>(tile.lane % 4 / 2 * 4);
    const i32 row = tile.row(tile.lane % 2);
    const i32 columns = Base::columns_left(p, tile, row, first);
    u8* const out = Base::row_address(p, tile, row) + first * 4;
    OCTAVO_UNROLL
    for (int i = 0; i < G::kORegisters / 4; ++i) {
      u32 x[4];
      OCTAVO_UNROLL
      for (int e = 0; e < 2; ++e) {
        const u32 upper = ptx::bits_of(o[i * 4 + e]);
        const u32 lower = ptx::bits_of(o[i * 4 + 2 + e]);
        const u32 received = exchange_word(odd ? upper : lower, 1);
        x[e] = odd ? received : upper;
        x[2 + e] = odd ? lower : received;
      }
      if (i * 8 < columns) ptx::store_global_b128(out + i * 8 * 4, x);
    }
  }
};

template <class G>
using OutputElement = OutputElementOf<G, element_bytes(G::C.output.element)>;

}  // namespace octavo::sm90
