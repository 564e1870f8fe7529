// SPDX-License-Identifier: Apache-2.0
// Configuration of the decode kernel (device/decode/decode.cuh), as a value.
#pragma once

#include "config/element.h"
#include "config/portable.h"

namespace octavo {

struct DecodeConfig {
  int arch = 80;                   // 80, 89 (FP8 conversions) or 90, the chip it is compiled for
  Element element = Element::f16;  // of Q and of both products: f16 or bf16
  Element kv = Element::f16;       // of K and V in memory: `element`, e4m3, e5m2, int8 or int4
  Element out = Element::f16;      // f16, bf16 or f32
  int head_dim = 128;              // columns of the tiles: the problem's, rounded up
  int block_m = 16;                // query rows of a work tile: 8, 16 or 32
  int block_n = 16;                // keys of one warp's step
  int warps = 4;                   // they divide the keys of a KV tile
  int stages = 3;                  // K/V buffers of a KV tile
  int min_ctas = 2;                // CTAs that share an SM
  int group = 0;                   // int4: channels that share a scale, 32 or 64; else 0
  bool draft_tree = false;         // bits say which keys of the queries a query sees
  bool batch_invariant = false;    // a sequence is divided by its own length alone
  bool clusters = false;           // sm_90: a cluster of CTAs computes each work tile

  bool operator==(const DecodeConfig&) const = default;
};

namespace decode {

OCTAVO_HD constexpr int threads(const DecodeConfig& c) { return 32 * c.warps; }
// Keys of a KV tile. CTAs divide the work in KV tiles.
OCTAVO_HD constexpr int tile_keys(const DecodeConfig& c) { return c.block_n * c.warps; }
OCTAVO_HD constexpr bool is_int4_kv(const DecodeConfig& c) { return c.kv == Element::int4; }
OCTAVO_HD constexpr bool is_8bit_kv(const DecodeConfig& c) {
  return element_bytes(c.kv) == 1 && !is_int4_kv(c);
}
// The bytes of so many channels of a key.
OCTAVO_HD constexpr int kv_bytes(const DecodeConfig& c, int channels) {
  return is_int4_kv(c) ? channels / 2 : channels * element_bytes(c.kv);
}
OCTAVO_HD constexpr int row_bytes(const DecodeConfig& c) { return kv_bytes(c, c.head_dim); }

// int4: groups of channels in a row, and the scales and zeros that a key has for K and V.
OCTAVO_HD constexpr int kv_groups(const DecodeConfig& c) {
  return is_int4_kv(c) ? c.head_dim / c.group : 0;
}
OCTAVO_HD constexpr int group_rows(const DecodeConfig& c) { return 4 * kv_groups(c); }

// A stage holds the tile's rows of K, then of V; with an 8-bit or int4 cache also their scales.
OCTAVO_HD constexpr int tile_bytes(const DecodeConfig& c) { return tile_keys(c) * row_bytes(c); }
OCTAVO_HD constexpr int stage_scale_bytes(const DecodeConfig& c) {
  return is_8bit_kv(c) ? 2 * tile_keys(c) * 4 : tile_keys(c) * group_rows(c) * 2;
}
OCTAVO_HD constexpr int stage_bytes(const DecodeConfig& c) {
  return 2 * tile_bytes(c) + stage_scale_bytes(c);
}
// At the end of a work tile the warps exchange O through the stage that they have just consumed,
// and two floats per row, reference maximum and sum, through memory of their own.
OCTAVO_HD constexpr int exchange_o_bytes(const DecodeConfig& c) {
  return c.warps * c.block_m * c.head_dim * 4;
}
OCTAVO_HD constexpr int exchange_rows_bytes(const DecodeConfig& c) {
  return c.warps * c.block_m * 2 * 4;
}
// Q stays in registers if it leaves enough of them for O; otherwise in shared memory.
OCTAVO_HD constexpr bool q_in_registers(const DecodeConfig& c) {
  return c.block_m * c.head_dim <= 16 * 128;
}
OCTAVO_HD constexpr int q_bytes(const DecodeConfig& c) {
  return q_in_registers(c) ? 0 : c.block_m * c.head_dim * 2;
}
// The shared memory in which a CTA receives the parts of its cluster: pairs of columns of O, two
// floats for each part and row, and a barrier.
inline constexpr int kMostCtas = 8;  // of a cluster
OCTAVO_HD constexpr int gather_pair_bytes(const DecodeConfig& c) {
  return c.block_m * c.head_dim * 4;
}
OCTAVO_HD constexpr int gather_bytes(const DecodeConfig& c) {
  return c.clusters ? gather_pair_bytes(c) + kMostCtas * c.block_m * 8 + 8 : 0;
}
OCTAVO_HD constexpr int smem_bytes(const DecodeConfig& c) {
  return c.stages * stage_bytes(c) + exchange_rows_bytes(c) + q_bytes(c) + gather_bytes(c);
}

// A partial result in the workspace, in floats: O (block_m x head_dim), then the reference maximum
// and the sum of each row. Every CTA has two: of its first work tile, and of its last. With
// batch_invariant every part has one.
OCTAVO_HD constexpr int partial_floats(const DecodeConfig& c) {
  return c.block_m * (c.head_dim + 2);
}

// With batch_invariant the KV tiles of a work tile are divided into parts of equal size, which
// follows from their number alone.
inline constexpr int kLeastPartTiles = 2, kMostParts = 64;
OCTAVO_HD constexpr int part_tiles(int kv_tiles) {
  const int tiles = (kv_tiles + kMostParts - 1) / kMostParts;
  return tiles > kLeastPartTiles ? tiles : kLeastPartTiles;
}
// The most parts of a work tile of at most so many KV tiles.
OCTAVO_HD constexpr int most_parts(int kv_tiles) {
  const int parts = (kv_tiles + kLeastPartTiles - 1) / kLeastPartTiles;
  return parts < kMostParts ? parts : kMostParts;
}

// The warps of a CTA of the combine kernel: kMostCombineWarps if work tiles have more than 64 parts
// on average, but never with batch_invariant.
inline constexpr int kCombineWarps = 8, kMostCombineWarps = 16;

}  // namespace decode

}  // namespace octavo
