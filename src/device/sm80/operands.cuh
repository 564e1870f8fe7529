// How each element type reaches mma.sync: fragments of Q, K, P and V, and the product they feed.
//
// One step of either product reads 32 bytes of a row ("two chunks") for 16-bit and native 8-bit
// types. Q and K need no rearrangement for any of them. V is stored key by key, so its fragments
// come from transposed loads:
//   16-bit   ldmatrix.trans gives the fragment as it is: accumulator column n is column n.
//   8-bit    ldmatrix.trans moves pairs of columns (2g, 2g+1); two byte permutes part them into a
//            fragment of the even columns and one of the odd. The key order that results, 2t, 2t+1,
//            8+2t, 9+2t of each 16, is the order in which the accumulators of QK hold P: nothing is
//            shuffled, and a thread ends with four neighbouring columns of O.
//   sim8     codes go the 8-bit way and become halves on the fly: 0x6400 | code is 1024 + code in
//            fp16, and subtracting 1152 leaves code - 128 exactly. The products are fp16's.
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

// Q and K, where a step of a product is two chunks of a row: all but sim8.
struct OperandsByTwoChunks {
  // Q: rows lane%16, chunk lane/16, the four 8x8 quarters of a 16-row A operand, in its order.
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

// What 16-bit types share.
struct Operands16 : OperandsByTwoChunks {
  using Accumulator = float;
  static constexpr int kQkColumns = 16;       // head-dim columns of one QK product
  static constexpr int kPvKeys = 16;          // keys of one PV product
  static constexpr bool kFoldBlocks = false;  // PV accumulates straight into O
  static constexpr bool kBlockMaximum = false;
  static constexpr int kProbabilityLog2 = 0;     // P is held times 2^this
  static constexpr float kOutputFactor = 1;      // from accumulated O to O
  static constexpr bool kPairedColumns = false;  // O's columns come in order

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
  // Column of O that accumulator tile `n` holds in its element e (0 or 1) of a row.
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
  // Two probabilities as a register of the A operand.
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

// Accumulator tiles of byte-wise V come in pairs: the even columns of sixteen, then the odd.
OCTAVO_DEVICE u32 paired_column(u32 n, u32 e, u32 lane) {
  return n / 2 * 16 + lane % 4 * 4 + e * 2 + n % 2;
}

// What the native 8-bit types share.
struct Operands8 : OperandsByTwoChunks {
  static constexpr int kQkColumns = 32;
  static constexpr int kPvKeys = 32;
  static constexpr bool kFoldBlocks = true;  // PV of a block into a fresh accumulator, then into O
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

// P in E4M3, times 2^8: its largest value, 1, becomes 256 of 448, and its smallest normal 2^-14.
// E5M2 keeps its 2 bits for Q, K and V; P stays E4M3.
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
      for (int half = 0; half < 2; ++half) {
        const auto& low = s[step * 4 + part * 2];
        const auto& high = s[step * 4 + part * 2 + 1];
        a.r[part * 2 + half] = ptx::e4m3x2_from_f32(low[half * 2], low[half * 2 + 1]) |
                               ptx::e4m3x2_from_f32(high[half * 2], high[half * 2 + 1]) << 16;
      }
    }
  }
  // What packing left over of a pair of neighbouring keys.
  static OCTAVO_DEVICE void leave_rest(float& first, float& second) {
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

// P in unsigned bytes of 1/255 of its block's largest: a row whose weight sits in another block
// still spends all 255 steps on this one.
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
  // Adding 1.5 * 2^23 leaves round(255 p) in the low byte of the float: no F2I, which runs at an
  // eighth of the rate.
  static OCTAVO_DEVICE u32 byte_of(float p) {
    return ptx::bits_of(ptx::fused_multiply_add(p, kProbabilitySteps, 12582912.0f));
  }
  template <int kTiles>
  static OCTAVO_DEVICE void pack_p(FragmentA& a, const float (&s)[kTiles][4], int step) {
    OCTAVO_UNROLL
    for (int part = 0; part < 2; ++part) {
      OCTAVO_UNROLL
      for (int half = 0; half < 2; ++half) {
        const auto& low = s[step * 4 + part * 2];
        const auto& high = s[step * 4 + part * 2 + 1];
        const u32 first =
            ptx::permute_bytes(byte_of(low[half * 2]), byte_of(low[half * 2 + 1]), 0x0040);
        const u32 second =
            ptx::permute_bytes(byte_of(high[half * 2]), byte_of(high[half * 2 + 1]), 0x0040);
        a.r[part * 2 + half] = ptx::permute_bytes(first, second, 0x5410);
      }
    }
  }
};

// Codes become halves on the way to fp16 products. A chunk is sixteen columns, one step: lane
// (g, t) holds columns 4t to 4t+3 of a row, and takes 4t, 4t+1 for its pair k = 2t, 2t+1 and the
// others for k + 8; Q and K agree on that order, so the product does not see it.
struct OperandsSim8 : OperandsF16 {
  static constexpr bool kPairedColumns = true;
  // 0x6400 | code is 1024 + code; bytes `selector` of r become two such halves.
  static OCTAVO_DEVICE u32 halves(u32 r, u32 selector) {
    return ptx::sub_f16x2(ptx::permute_bytes(r, 0x64646464u, selector), 0x64806480u);
  }
  static constexpr u32 kFirstTwo = 0x4140, kLastTwo = 0x4342;  // neighbours
  static constexpr u32 kEven = 0x4240, kOdd = 0x4341;          // every other

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
    a = {{halves(r[0], kFirstTwo), halves(r[1], kFirstTwo), halves(r[0], kLastTwo),
          halves(r[1], kLastTwo)}};
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
    b = {{{halves(r[0], kFirstTwo), halves(r[0], kLastTwo)},
          {halves(r[1], kFirstTwo), halves(r[1], kLastTwo)}}};
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
    b = {{{halves(r[0], kEven), halves(r[1], kEven)}, {halves(r[0], kOdd), halves(r[1], kOdd)}}};
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
