// SPDX-License-Identifier: Apache-2.0
// Operands of the decode kernel's products.
//
// A 16-bit cache has Q's type, and the products use it. Values of an 8-bit cache are converted to
// FP16 between shared memory and the tensor cores, exactly, two values by one or two instructions.
// BF16 Q is then converted to FP16 as well, after each row is divided by the power of two of its
// largest element. Only elements below 2^-17 of the largest lose bits.
//
// 8-bit rows are read in the same order as sim8's on sm80 (device/sm80/operands.cuh): a lane
// receives four neighbouring channels of K, so Q is loaded in that order too. Accumulator tiles of
// O come in pairs: one has the even channels of sixteen, the next the odd ones.
#pragma once

#include "config/element.h"
#include "device/ptx/fragment.cuh"
#include "device/ptx/math.cuh"
#include "device/sm80/operands.cuh"

namespace octavo::decode {

// B operand of one 8-column tile.
struct FragmentB {
  u32 r[2];
};

// K and V in Q's type.
template <class Operands>
struct SameType : Operands {
  static constexpr int kAtOnce = 1;  // fragments that one ldmatrix loads

  // Lanes of ldmatrix whose four registers are an A operand in order, of sixteen keys of K or of
  // sixteen columns of V. They are those of B operands of the other one.
  template <int kRowBytes>
  static OCTAVO_DEVICE LaneAddress<kRowBytes> k_rows_lane(const SharedTile<kRowBytes>& tile,
                                                          u32 key, u32 lane) {
    return Operands::v_lane(tile, key, lane);
  }
  template <int kRowBytes>
  static OCTAVO_DEVICE LaneAddress<kRowBytes> v_rows_lane(const SharedTile<kRowBytes>& tile,
                                                          u32 key, u32 lane) {
    return Operands::k_lane(tile, key, lane);
  }
  static OCTAVO_DEVICE FragmentA as_rows(const FragmentB2& b) {
    return {{b.r[0][0], b.r[0][1], b.r[1][0], b.r[1][1]}};
  }
  // The first of the two neighbouring channels of Q in half `part` (0 or 1) of a lane's A operand.
  // In half 1 the operand's columns are eight further.
  static OCTAVO_DEVICE u32 q_column(u32 step, u32 part, u32 lane) {
    return step * 16 + part * 8 + lane % 4 * 2;
  }
  template <int kRowBytes>
  static OCTAVO_DEVICE void load_k(FragmentB2 (&b)[1], const LaneAddress<kRowBytes>& k, u32 keys,
                                   u32 step) {
    Operands::load_k(b[0], k, keys, step);
  }
  template <int kRowBytes>
  static OCTAVO_DEVICE void load_v(FragmentB2 (&b)[1], const LaneAddress<kRowBytes>& v, u32 keys,
                                   u32 tile16) {
    Operands::load_v(b[0], v, keys, tile16);
  }
};

// Converts the four bytes of a register to FP16: to two pairs of neighbours, or to one pair of the
// bytes 0 and 2 and one of the bytes 1 and 3.

template <Element kKv>
struct ToF16;
template <>
struct ToF16<Element::e4m3> {
  static OCTAVO_DEVICE void neighbours(u32 bytes, u32& first, u32& second) {
    ptx::f16x4_from_e4m3x4(first, second, bytes);
  }
  static OCTAVO_DEVICE void alternate(u32 bytes, u32& even, u32& odd) {
    neighbours(ptx::permute_bytes(bytes, 0, 0x3120), even, odd);
  }
};
// An e5m2 value is the upper byte of the same FP16 value.
template <>
struct ToF16<Element::e5m2> {
  static OCTAVO_DEVICE void neighbours(u32 bytes, u32& first, u32& second) {
    first = ptx::permute_bytes(bytes, 0, 0x1404);
    second = ptx::permute_bytes(bytes, 0, 0x3424);
  }
  static OCTAVO_DEVICE void alternate(u32 bytes, u32& even, u32& odd) {
    even = ptx::permute_bytes(bytes, 0, 0x2404);
    odd = ptx::permute_bytes(bytes, 0, 0x3414);
  }
};
// 0x6400 | byte is 1024 + byte in FP16. Flipping the sign bit adds 128 to the value first.
template <>
struct ToF16<Element::int8> {
  static OCTAVO_DEVICE void neighbours(u32 bytes, u32& first, u32& second) {
    first = of_bytes<0x4140>(bytes);
    second = of_bytes<0x4342>(bytes);
  }
  static OCTAVO_DEVICE void alternate(u32 bytes, u32& even, u32& odd) {
    even = of_bytes<0x4240>(bytes);
    odd = of_bytes<0x4341>(bytes);
  }

 private:
  template <u32 kSelector>
  static OCTAVO_DEVICE u32 of_bytes(u32 bytes) {
    return ptx::sub_f16x2(ptx::permute_bytes(bytes ^ 0x80808080u, 0x64646464u, kSelector),
                          0x64806480u);
  }
};

// K and V in 8 bits: read like sim8, two chunks of sixteen keys at once, and converted by ToF16.
template <Element kKv>
struct Widened : sm80::OperandsSim8 {
  static constexpr int kAtOnce = 2;

  static OCTAVO_DEVICE u32 q_column(u32 step, u32 part, u32 lane) {
    return step * 16 + lane % 4 * 4 + part * 2;
  }
  template <int kRowBytes>
  static OCTAVO_DEVICE LaneAddress<kRowBytes> k_lane(const SharedTile<kRowBytes>& tile, u32 key,
                                                     u32 lane) {
    return {tile, key + lane % 16, lane / 16};
  }
  template <int kRowBytes>
  static OCTAVO_DEVICE LaneAddress<kRowBytes> v_lane(const SharedTile<kRowBytes>& tile, u32 key,
                                                     u32 lane) {
    return k_lane(tile, key, lane);
  }
  template <int kRowBytes>
  static OCTAVO_DEVICE LaneAddress<kRowBytes> k_rows_lane(const SharedTile<kRowBytes>& tile,
                                                          u32 key, u32 lane) {
    return k_lane(tile, key, lane);
  }
  template <int kRowBytes>
  static OCTAVO_DEVICE LaneAddress<kRowBytes> v_rows_lane(const SharedTile<kRowBytes>& tile,
                                                          u32 key, u32 lane) {
    return k_lane(tile, key, lane);
  }
  // The B operands of sixteen keys of K, or of sixteen columns of V, as the rows of an A operand.
  static OCTAVO_DEVICE FragmentA as_rows(const FragmentB2& b) {
    return {{b.r[0][0], b.r[1][0], b.r[0][1], b.r[1][1]}};
  }
  // `step` is even.
  template <int kRowBytes>
  static OCTAVO_DEVICE void load_k(FragmentB2 (&b)[2], const LaneAddress<kRowBytes>& k, u32 keys,
                                   u32 step) {
    u32 r[4];  // eight keys, the next eight; then the same of the second chunk
    ptx::ldmatrix_x4(r, k.at(keys, step));
    OCTAVO_UNROLL
    for (int i = 0; i < 4; ++i) {
      u32(&keys_of)[2] = b[i / 2].r[i % 2];
      ToF16<kKv>::neighbours(r[i], keys_of[0], keys_of[1]);
    }
  }
  // `tile16` is even.
  template <int kRowBytes>
  static OCTAVO_DEVICE void load_v(FragmentB2 (&b)[2], const LaneAddress<kRowBytes>& v, u32 keys,
                                   u32 tile16) {
    u32 r[4];
    ptx::ldmatrix_x4_trans(r, v.at(keys, tile16));
    OCTAVO_UNROLL
    for (int i = 0; i < 4; ++i)
      ToF16<kKv>::alternate(r[i], b[i / 2].r[0][i % 2], b[i / 2].r[1][i % 2]);
  }
};

// K and V in int4 (int4_products.cuh). A word has eight channels, four bits each, in the order 0,
// 2, 4, 6, 1, 3, 5, 7. An AND with 0x000f000f or 0x00f000f0 therefore extracts a pair of
// neighbouring channels of K, or the same channel of two keys of V. Q is loaded in the order of the
// pairs, and the tiles of O hold neighbouring channels in every lane.
struct OperandsInt4 : sm80::OperandsF16 {
  static OCTAVO_DEVICE u32 q_column(u32 step, u32 part, u32 lane) {
    return step / 2 * 32 + lane % 4 * 8 + step % 2 * 4 + part * 2;
  }
  // Sixteen keys, two chunks.
  template <int kRowBytes>
  static OCTAVO_DEVICE LaneAddress<kRowBytes> lane(const SharedTile<kRowBytes>& tile, u32 key,
                                                   u32 lane) {
    return {tile, key + lane % 16, lane / 16};
  }
  static OCTAVO_DEVICE u32 column(u32 n, u32 e, u32 lane) {
    return n / 4 * 32 + lane % 4 * 8 + n % 4 * 2 + e;
  }
};

template <Element kElement, Element kKv>
struct OperandsOf : Widened<kKv> {};
template <Element kElement>
struct OperandsOf<kElement, Element::int4> : OperandsInt4 {};
template <>
struct OperandsOf<Element::f16, Element::f16> : SameType<sm80::OperandsF16> {};
template <>
struct OperandsOf<Element::bf16, Element::bf16> : SameType<sm80::OperandsBf16> {};

}  // namespace octavo::decode
