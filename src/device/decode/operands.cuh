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
#include "device/ptx/math.cuh"
#include "device/sm80/operands.cuh"

namespace octavo::decode {

// K and V in Q's type.
template <class Operands>
struct SameType : Operands {
  // The first of the two neighbouring channels of Q in half `part` (0 or 1) of a lane's A operand.
  // In half 1 the operand's columns are eight further.
  static OCTAVO_DEVICE u32 q_column(u32 step, u32 part, u32 lane) {
    return step * 16 + part * 8 + lane % 4 * 2;
  }
};

// Converts two bytes of a register to a pair of FP16 values. The digits of `selector` are the
// numbers of the bytes, the first one lowest.

template <Element kKv>
struct ToF16;
template <>
struct ToF16<Element::e4m3> {
  static OCTAVO_DEVICE u32 pair(u32 bytes, u32 selector) {
    return ptx::f16x2_from_e4m3x2(ptx::permute_bytes(bytes, 0, selector));
  }
};
// An e5m2 value is the upper byte of the same FP16 value.
template <>
struct ToF16<Element::e5m2> {
  static OCTAVO_DEVICE u32 pair(u32 bytes, u32 selector) {
    const u32 low = selector & 0xf, high = selector >> 4;
    return ptx::permute_bytes(bytes, 0, 0x0404u | low << 4 | high << 12);
  }
};
// 0x6400 | byte is 1024 + byte in FP16. Flipping the sign bit adds 128 to the value first.
template <>
struct ToF16<Element::int8> {
  static OCTAVO_DEVICE u32 pair(u32 bytes, u32 selector) {
    const u32 low = selector & 0xf, high = selector >> 4;
    const u32 magic =
        ptx::permute_bytes(bytes ^ 0x80808080u, 0x64646464u, 0x4040u | low | high << 8);
    return ptx::sub_f16x2(magic, 0x64806480u);
  }
};

// K and V in 8 bits: read like sim8, converted by ToF16.
template <Element kKv>
struct Widened : sm80::OperandsSim8 {
  static constexpr u32 kFirstTwo = 0x10, kLastTwo = 0x32;  // neighbouring bytes
  static constexpr u32 kEven = 0x20, kOdd = 0x31;          // every other byte

  static OCTAVO_DEVICE u32 q_column(u32 step, u32 part, u32 lane) {
    return step * 16 + lane % 4 * 4 + part * 2;
  }
  template <int kRowBytes>
  static OCTAVO_DEVICE void load_k(FragmentB2& b, const LaneAddress<kRowBytes>& k, u32 keys,
                                   u32 step) {
    u32 r[2];
    ptx::ldmatrix_x2(r, k.at(keys, step));
    OCTAVO_UNROLL
    for (int i = 0; i < 2; ++i) {
      b.r[i][0] = ToF16<kKv>::pair(r[i], kFirstTwo);
      b.r[i][1] = ToF16<kKv>::pair(r[i], kLastTwo);
    }
  }
  template <int kRowBytes>
  static OCTAVO_DEVICE void load_v(FragmentB2& b, const LaneAddress<kRowBytes>& v, u32 keys,
                                   u32 tile16) {
    u32 r[2];
    ptx::ldmatrix_x2_trans(r, v.at(keys, tile16));
    OCTAVO_UNROLL
    for (int i = 0; i < 2; ++i) {
      b.r[0][i] = ToF16<kKv>::pair(r[i], kEven);
      b.r[1][i] = ToF16<kKv>::pair(r[i], kOdd);
    }
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
