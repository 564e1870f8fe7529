// SPDX-License-Identifier: Apache-2.0
// Operands of mma.sync for each element type: fragments of Q, K, P and V, and the product that uses
// them.
//
// One step of either product reads 32 bytes of a row ("two chunks") for 16-bit and native 8-bit
// types. Q and K need no rearrangement for any of them. V is stored key by key, so its fragments
// come from transposed loads:
//   16-bit   ldmatrix.trans loads the fragment directly: accumulator column n is column n.
//   8-bit    ldmatrix.trans moves pairs of columns (2g, 2g+1); two byte permutes separate them into
//            a fragment of the even columns and one of the odd. The resulting key order, 2t, 2t+1,
//            8+2t, 9+2t of each 16, is the order in which the accumulators of QK hold P: no shuffle
//            is needed, and a thread ends with four neighbouring columns of O.
//   sim8     bytes are loaded the 8-bit way and converted to FP16: 0x6400 | byte is 1024 + byte in
//            FP16, and subtracting 1152 leaves byte - 128 exactly. The products are FP16 products.
#pragma once

#include "config/element.h"
#include "device/ptx/math.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/mma.cuh"
#include "device/tile/shared_tile.cuh"

namespace octavo {

struct FragmentA {
  u32 r[4];
};

// B fragments of two neighbouring 8-column tiles.
struct FragmentB2 {
  u32 r[2][2];
};

namespace sm80 {

// Q and K of all types but sim8: a step of a product is two chunks of a row.
struct OperandsByTwoChunks {
  // Q: lane l addresses row l%16, chunk l/16: the four 8x8 quarters of a 16-row A operand, in
  // order.
  template <int kRowBytes>
  static OCTAVO_DEVICE LaneAddress<kRowBytes> q_lane(const SharedTile<kRowBytes>& tile, u32 row,
                                                     u32 lane) {
    return {tile, row + lane % 16, lane / 16};
  }
  template <int kRowBytes>
  static OCTAVO_DEVICE void load_q(FragmentA& a, const LaneAddress<kRowBytes>& q, u32 rows,
                                   u32 step) {
    ptx::ldmatrix_x4(a.r, q.at(rows, step * 2));
  }
  // K: sixteen keys, two chunks: B fragments of two tiles of eight keys.
  template <int kRowBytes>
  static OCTAVO_DEVICE LaneAddress<kRowBytes> k_lane(const SharedTile<kRowBytes>& tile, u32 key,
                                                     u32 lane) {
    return {tile, key + lane % 8 + lane / 16 * 8, lane / 8 % 2};
  }
  template <int kRowBytes>
  static OCTAVO_DEVICE void load_k(FragmentB2& b, const LaneAddress<kRowBytes>& k, u32 keys,
                                   u32 step) {
    u32 r[4];
    ptx::ldmatrix_x4(r, k.at(keys, step * 2));
    b = {{{r[0], r[1]}, {r[2], r[3]}}};
  }
};

// Common to the 16-bit types.
struct Operands16 : OperandsByTwoChunks {
  using Accumulator = float;
  static constexpr int kQkColumns = 16;          // head-dim columns of one QK product
  static constexpr int kPvKeys = 16;             // keys of one PV product
  static constexpr bool kPromoteBlocks = false;  // PV accumulates directly into O
  static constexpr bool kBlockMaximum = false;
  static constexpr int kProbabilityLog2 = 0;     // P is scaled by 2^this
  static constexpr float kOutputFactor = 1;      // from accumulated O to O
  static constexpr bool kPairedColumns = false;  // O's columns are in order

  // V: sixteen keys, sixteen columns.
  template <int kRowBytes>
  static OCTAVO_DEVICE LaneAddress<kRowBytes> v_lane(const SharedTile<kRowBytes>& tile, u32 key,
                                                     u32 lane) {
    return {tile, key + lane % 16, lane / 16};
  }
  template <int kRowBytes>
  static OCTAVO_DEVICE void load_v(FragmentB2& b, const LaneAddress<kRowBytes>& v, u32 keys,
                                   u32 tile16) {
    u32 r[4];
    ptx::ldmatrix_x4_trans(r, v.at(keys, tile16 * 2));
    b = {{{r[0], r[1]}, {r[2], r[3]}}};
  }
  // The column of O in element e (0 or 1) of a row of accumulator tile `n`.
  static OCTAVO_DEVICE u32 column(u32 n, u32 e, u32 lane) { return n * 8 + lane % 4 * 2 + e; }
};

struct OperandsF16 : Operands16 {
  static OCTAVO_DEVICE void mma_qk(float (&d)[4], const FragmentA& a, const u32 (&b)[2],
                                   const float (&c)[4]) {
    ptx::mma_m16n8k16_f16(d, a.r, b, c);
  }
  static OCTAVO_DEVICE void mma_pv(float (&d)[4], const FragmentA& a, const u32 (&b)[2],
                                   const float (&c)[4]) {
    ptx::mma_m16n8k16_f16(d, a.r, b, c);
  }
  // Two probabilities packed into a register of the A operand.
  static OCTAVO_DEVICE u32 pack_pair(float low, float high) {
    return ptx::f16x2_from_f32(low, high);
  }
};

struct OperandsBf16 : Operands16 {
  static OCTAVO_DEVICE void mma_qk(float (&d)[4], const FragmentA& a, const u32 (&b)[2],
                                   const float (&c)[4]) {
    ptx::mma_m16n8k16_bf16(d, a.r, b, c);
  }
  static OCTAVO_DEVICE void mma_pv(float (&d)[4], const FragmentA& a, const u32 (&b)[2],
                                   const float (&c)[4]) {
    ptx::mma_m16n8k16_bf16(d, a.r, b, c);
  }
  static OCTAVO_DEVICE u32 pack_pair(float low, float high) {
    return ptx::bf16x2_from_f32(low, high);
  }
};

// With 8-bit V, accumulator tiles come in pairs: the even columns of sixteen, then the odd.
OCTAVO_DEVICE u32 paired_column(u32 n, u32 e, u32 lane) {
  return n / 2 * 16 + lane % 4 * 4 + e * 2 + n % 2;
}

// Common to the native 8-bit types.
struct Operands8 : OperandsByTwoChunks {
  static constexpr int kQkColumns = 32;
  static constexpr int kPvKeys = 32;
  static constexpr bool kPromoteBlocks = true;  // each block's PV is promoted to FP32
  static constexpr bool kPairedColumns = true;

  // V: four transposed 8x8 matrices of byte pairs, keys 8i to 8i+7 of sixteen columns. Word i of
  // lane (g, t) holds keys 8i+2t and 8i+2t+1, columns 2g and 2g+1 of each.
  template <int kRowBytes>
  static OCTAVO_DEVICE LaneAddress<kRowBytes> v_lane(const SharedTile<kRowBytes>& tile, u32 key,
                                                     u32 lane) {
    return {tile, key + lane, 0};
  }
  template <int kRowBytes>
  static OCTAVO_DEVICE void load_v(FragmentB2& b, const LaneAddress<kRowBytes>& v, u32 keys,
                                   u32 tile16) {
    constexpr u32 kEven = 0x6420, kOdd = 0x7531;
    u32 r[4];
    ptx::ldmatrix_x4_trans(r, v.at(keys, tile16));
    b = {{{ptx::permute_bytes(r[0], r[1], kEven), ptx::permute_bytes(r[2], r[3], kEven)},
          {ptx::permute_bytes(r[0], r[1], kOdd), ptx::permute_bytes(r[2], r[3], kOdd)}}};
  }
  static OCTAVO_DEVICE u32 column(u32 n, u32 e, u32 lane) { return paired_column(n, e, lane); }
};

// P is E4M3, scaled by 2^8: its largest value, 1, becomes 256 of at most 448, and its smallest
// normal value is 2^-14. With E5M2 Q, K and V, P is still E4M3, which has one more bit.
struct OperandsFp8 : Operands8 {
  using Accumulator = float;
  static constexpr bool kBlockMaximum = false;
  static constexpr int kProbabilityLog2 = 8;
  static constexpr float kOutputFactor = 1;

  template <int kTiles>
  static OCTAVO_DEVICE void pack_p(FragmentA& a, const float (&s)[kTiles][4], int step) {
    OCTAVO_UNROLL
    for (int part = 0; part < 2; ++part) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const auto& low = s[step * 4 + part * 2];
        const auto& high = s[step * 4 + part * 2 + 1];
        a.r[part * 2 + r] = ptx::e4m3x2_from_f32(low[r * 2], low[r * 2 + 1]) |
                            ptx::e4m3x2_from_f32(high[r * 2], high[r * 2 + 1]) << 16;
      }
    }
  }
  // Subtracts the packed value of two neighbouring keys, which leaves the rounding error.
  static OCTAVO_DEVICE void subtract_packed(float& first, float& second) {
    float packed_first, packed_second;
    ptx::f32_from_f16x2(packed_first, packed_second,
                        ptx::f16x2_from_e4m3x2(ptx::e4m3x2_from_f32(first, second)));
    first -= packed_first;
    second -= packed_second;
  }
};

struct OperandsE4m3 : OperandsFp8 {
  static OCTAVO_DEVICE void mma_qk(float (&d)[4], const FragmentA& a, const u32 (&b)[2],
                                   const float (&c)[4]) {
    ptx::mma_m16n8k32_e4m3(d, a.r, b, c);
  }
  static OCTAVO_DEVICE void mma_pv(float (&d)[4], const FragmentA& a, const u32 (&b)[2],
                                   const float (&c)[4]) {
    ptx::mma_m16n8k32_e4m3(d, a.r, b, c);
  }
};

struct OperandsE5m2 : OperandsFp8 {
  static OCTAVO_DEVICE void mma_qk(float (&d)[4], const FragmentA& a, const u32 (&b)[2],
                                   const float (&c)[4]) {
    ptx::mma_m16n8k32_e5m2(d, a.r, b, c);
  }
  static OCTAVO_DEVICE void mma_pv(float (&d)[4], const FragmentA& a, const u32 (&b)[2],
                                   const float (&c)[4]) {
    ptx::mma_m16n8k32_e4m3_e5m2(d, a.r, b, c);
  }
};

// P is an unsigned 8-bit integer in steps of 1/255 of its block's largest value, so a block uses
// all 255 steps even if the row's maximum is in another block.
struct OperandsInt8 : Operands8 {
  using Accumulator = i32;
  static constexpr bool kBlockMaximum = true;
  static constexpr int kProbabilityLog2 = 0;
  static constexpr float kProbabilitySteps = 255;
  static constexpr float kOutputFactor = 1 / kProbabilitySteps;

  static OCTAVO_DEVICE void mma_qk(i32 (&d)[4], const FragmentA& a, const u32 (&b)[2],
                                   const i32 (&c)[4]) {
    ptx::mma_m16n8k32_s8(d, a.r, b, c);
  }
  static OCTAVO_DEVICE void mma_pv(i32 (&d)[4], const FragmentA& a, const u32 (&b)[2],
                                   const i32 (&c)[4]) {
    ptx::mma_m16n8k32_u8_s8(d, a.r, b, c);
  }
  // Adding 1.5 * 2^23 leaves round(255 p) in the low byte of the float. This avoids F2I, which runs
  // at an eighth of the rate.
  static OCTAVO_DEVICE u32 quantize_p(float p) {
    return ptx::bits_of(ptx::fused_multiply_add(p, kProbabilitySteps, 12582912.0f));
  }
  template <int kTiles>
  static OCTAVO_DEVICE void pack_p(FragmentA& a, const float (&s)[kTiles][4], int step) {
    OCTAVO_UNROLL
    for (int part = 0; part < 2; ++part) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const auto& low = s[step * 4 + part * 2];
        const auto& high = s[step * 4 + part * 2 + 1];
        const u32 first =
            ptx::permute_bytes(quantize_p(low[r * 2]), quantize_p(low[r * 2 + 1]), 0x0040);
        const u32 second =
            ptx::permute_bytes(quantize_p(high[r * 2]), quantize_p(high[r * 2 + 1]), 0x0040);
        a.r[part * 2 + r] = ptx::permute_bytes(first, second, 0x5410);
      }
    }
  }
};

// The 8-bit values are converted to FP16 for FP16 products. A chunk is sixteen columns, one step:
// lane (g, t) holds columns 4t to 4t+3 of a row, and uses 4t, 4t+1 as its pair k = 2t, 2t+1 and the
// others as k + 8. Q and K use the same order, so the product does not depend on it.
struct OperandsSim8 : OperandsF16 {
  static constexpr bool kPairedColumns = true;
  // 0x6400 | byte is 1024 + byte; the bytes of r that `selector` names become two FP16 values.
  static OCTAVO_DEVICE u32 decode_pair(u32 r, u32 selector) {
    return ptx::sub_f16x2(ptx::permute_bytes(r, 0x64646464u, selector), 0x64806480u);
  }
  static constexpr u32 kFirstTwo = 0x4140, kLastTwo = 0x4342;  // adjacent bytes
  static constexpr u32 kEven = 0x4240, kOdd = 0x4341;          // every other byte

  template <int kRowBytes>
  static OCTAVO_DEVICE LaneAddress<kRowBytes> q_lane(const SharedTile<kRowBytes>& tile, u32 row,
                                                     u32 lane) {
    return {tile, row + lane % 16, 0};
  }
  template <int kRowBytes>
  static OCTAVO_DEVICE void load_q(FragmentA& a, const LaneAddress<kRowBytes>& q, u32 rows,
                                   u32 step) {
    u32 r[2];
    ptx::ldmatrix_x2(r, q.at(rows, step));
    a = {{decode_pair(r[0], kFirstTwo), decode_pair(r[1], kFirstTwo), decode_pair(r[0], kLastTwo),
          decode_pair(r[1], kLastTwo)}};
  }
  template <int kRowBytes>
  static OCTAVO_DEVICE LaneAddress<kRowBytes> k_lane(const SharedTile<kRowBytes>& tile, u32 key,
                                                     u32 lane) {
    return {tile, key + lane % 16, 0};
  }
  template <int kRowBytes>
  static OCTAVO_DEVICE void load_k(FragmentB2& b, const LaneAddress<kRowBytes>& k, u32 keys,
                                   u32 step) {
    u32 r[2];
    ptx::ldmatrix_x2(r, k.at(keys, step));
    b = {{{decode_pair(r[0], kFirstTwo), decode_pair(r[0], kLastTwo)},
          {decode_pair(r[1], kFirstTwo), decode_pair(r[1], kLastTwo)}}};
  }
  template <int kRowBytes>
  static OCTAVO_DEVICE LaneAddress<kRowBytes> v_lane(const SharedTile<kRowBytes>& tile, u32 key,
                                                     u32 lane) {
    return {tile, key + lane % 16, 0};
  }
  template <int kRowBytes>
  static OCTAVO_DEVICE void load_v(FragmentB2& b, const LaneAddress<kRowBytes>& v, u32 keys,
                                   u32 tile16) {
    u32 r[2];
    ptx::ldmatrix_x2_trans(r, v.at(keys, tile16));
    b = {{{decode_pair(r[0], kEven), decode_pair(r[1], kEven)},
          {decode_pair(r[0], kOdd), decode_pair(r[1], kOdd)}}};
  }
  static OCTAVO_DEVICE u32 column(u32 n, u32 e, u32 lane) { return paired_column(n, e, lane); }
};

template <Element kElement>
struct OperandsOf;
template <>
struct OperandsOf<Element::f16> : OperandsF16 {};
template <>
struct OperandsOf<Element::bf16> : OperandsBf16 {};
template <>
struct OperandsOf<Element::e4m3> : OperandsE4m3 {};
template <>
struct OperandsOf<Element::e5m2> : OperandsE5m2 {};
template <>
struct OperandsOf<Element::int8> : OperandsInt8 {};
template <>
struct OperandsOf<Element::sim8> : OperandsSim8 {};

}  // namespace sm80
}  // namespace octavo
