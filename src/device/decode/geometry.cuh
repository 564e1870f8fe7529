// SPDX-License-Identifier: Apache-2.0
// Sizes and register state of the decode kernel, derived from its configuration.
#pragma once

#include "config/decode.h"
#include "device/core/mma_state.cuh"
#include "device/core/score_rows.cuh"
#include "device/decode/operands.cuh"
#include "device/decode/params.cuh"
#include "device/decode/schedule.cuh"
#include "device/tile/shared_tile.cuh"

namespace octavo::decode {

template <DecodeConfig kConfig>
struct ConfigOf {
  static constexpr DecodeConfig value = kConfig;
};

template <class Config>
struct Geometry {
  static constexpr DecodeConfig C = Config::value;
  using Operands = OperandsOf<C.element, C.kv>;
  using Tile = SharedTile<row_bytes(C)>;
  // With eight query rows both products are transposed, s^T = k q^T and o^T = v^T p^T: keys and
  // columns of O are the sixteen rows of an mma tile, query rows its eight columns. With eight of
  // sixteen rows, half of every tile would be empty.
  static constexpr bool kTransposed = C.block_m == 8;
  static constexpr int kTilesM = div_up(C.block_m, 16);  // mma tiles along the query rows,
  static constexpr int kTilesN = C.block_n / 8;          // groups of eight of a warp's keys,
  static constexpr int kTilesD = C.head_dim / 8;         // and of the columns of O
  // How many tiles of four accumulators a thread has for the scores and the O of each kTilesM.
  static constexpr int kScoreTiles = kTransposed ? kTilesN / 2 : kTilesN;
  static constexpr int kOTiles = kTransposed ? kTilesD / 2 : kTilesD;
  static constexpr int kKeys = kTransposed ? kTilesN : 2 * kTilesN;  // of a row, in a thread
  static constexpr int kQkSteps = C.head_dim / 16;
  static constexpr int kPvSteps = C.block_n / 16;
  static_assert((kTransposed || C.block_m % 16 == 0) && C.block_n % 16 == 0,
                "mma tiles are 16 rows and 16 keys, or 16 keys and 8 rows");
  static_assert(!kTransposed || q_in_registers(C), "the transposed products have few rows");
  static_assert(C.head_dim % 16 == 0, "the head dimension is padded to whole mma steps");
  static_assert(kTilesD % (C.warps * (Operands::kPairedColumns ? 2 : 1)) == 0,
                "at the end of a work tile each warp finishes an equal part of the columns, in "
                "whole pairs of tiles with an 8-bit cache");
  static_assert(exchange_o_bytes(C) <= 2 * tile_bytes(C),
                "the O of all warps fits into the stage that they have consumed");

  // The coordinates of this thread. The thread holds two rows of scores and O of each tile, r = 0
  // and 1. They are rows lane / 4 and lane / 4 + 8, with keys 2 (lane % 4) and 2 (lane % 4) + 1 of
  // every eight; if transposed, rows 2 (lane % 4) and 2 (lane % 4) + 1, with key lane / 4 of every
  // eight. Both keep the two values of row r in elements 2 r and 2 r + 1 of four accumulators. Rows
  // of Q and of the result are always in the first order (whole_row).
  struct Thread {
    u32 warp, lane;
    OCTAVO_DEVICE i32 whole_row(int m, int r) const {
      return m * 16 + r * 8 + static_cast<i32>(lane / 4);
    }
    OCTAVO_DEVICE i32 row(int m, int r) const {
      return kTransposed ? static_cast<i32>(lane % 4 * 2) + r : whole_row(m, r);
    }
    // The thread's first key of the warp's block, and the distance of its key i from there.
    OCTAVO_DEVICE i32 first_key() const {
      return static_cast<i32>(kTransposed ? lane / 4 : lane % 4 * 2);
    }
    static OCTAVO_DEVICE constexpr i32 key_offset(int i) {
      return kTransposed ? i * 8 : i / 2 * 8 + i % 2;
    }
    // Key i within the KV tile.
    OCTAVO_DEVICE u32 key(int i) const {
      return warp * C.block_n + static_cast<u32>(first_key() + key_offset(i));
    }
    // The greatest and the sum of a value over the lanes that share a row.
    static OCTAVO_DEVICE float row_max(float x) {
      if constexpr (!kTransposed) return quad_max(x);
      OCTAVO_UNROLL
      for (int lanes = 4; lanes < 32; lanes *= 2) x = ptx::max_f32(x, ptx::shuffle_xor(x, lanes));
      return x;
    }
    static OCTAVO_DEVICE float row_sum(float x) {
      if constexpr (!kTransposed) return quad_sum(x);
      OCTAVO_UNROLL
      for (int lanes = 4; lanes < 32; lanes *= 2) x += ptx::shuffle_xor(x, lanes);
      return x;
    }
    // Whether this is the first of the lanes that share its rows.
    OCTAVO_DEVICE bool is_first_of_row() const { return kTransposed ? lane < 4 : lane % 4 == 0; }
  };

  template <bool kFirst, class First, class Second>
  struct Select {
    using Type = First;
  };
  template <class First, class Second>
  struct Select<false, First, Second> {
    using Type = Second;
  };

  struct Scores {
    float s[kTilesM][kScoreTiles][4];
    // Row r of tile m at the thread's key i.
    OCTAVO_DEVICE float& at(int m, int r, int i) { return s[m][i / 2][r * 2 + i % 2]; }
    OCTAVO_DEVICE void clear() {
      OCTAVO_UNROLL
      for (int n = 0; n < kScoreTiles; ++n) clear_tile(n);
    }
    OCTAVO_DEVICE void clear_tile(int n) {
      OCTAVO_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) s[m][n][e] = 0;
      }
    }
  };
  // With an int4 cache one more tile after O accumulates the zeros of V (int4_products.cuh).
  using State = MmaState<kTilesM, kOTiles + (is_int4_kv(C) ? 1 : 0)>;
  // Q is converted to FP16, with a scale for each row, if it is BF16 and the cache is 8-bit, and
  // always if the cache is int4.
  static constexpr bool kConvertsQ = is_int4_kv(C) || (is_8bit_kv(C) && C.element == Element::bf16);
  struct QScales {
    float scale[kConvertsQ ? kTilesM : 1][2];
    OCTAVO_DEVICE float row_scale(int m, int r) const { return kConvertsQ ? scale[m][r] : 1.0f; }
  };
  // int4: the sums of Q over each group of channels. K's zeros multiply them.
  struct NoQSums {};
  struct QSumFragments {
    FragmentA sums[kTilesM];
  };
  struct QRows : QScales, Select<!is_int4_kv(C), NoQSums, QSumFragments>::Type {};
  struct QFragments : QRows {
    FragmentA a[kTilesM][kQkSteps];
    // Every warp keeps all of Q in its registers.
    OCTAVO_DEVICE void share(const QFragments& loaded, const Thread&) { *this = loaded; }
    OCTAVO_DEVICE FragmentA fragment(int m, int step, const Thread&) const { return a[m][step]; }
  };
  // Each warp has loaded all of Q and writes a part of it to shared memory. No warp still reads the
  // Q of the previous work tile, as the exchange at its end has synchronised the warps.
  struct SharedQ : QRows {
    static OCTAVO_DEVICE u32 address(int m, int step, const Thread& thread) {
      return exchanged_row(C.warps, 0, 0) +
             (static_cast<u32>(m * kQkSteps + step) * 32 + thread.lane) * 16;
    }
    OCTAVO_DEVICE void share(const QFragments& loaded, const Thread& thread) {
      QRows::operator=(loaded);
      OCTAVO_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        OCTAVO_UNROLL
        for (int step = 0; step < kQkSteps; ++step)
          if (static_cast<u32>(step) % C.warps == thread.warp)
            ptx::store_shared_b128(address(m, step, thread), loaded.a[m][step].r);
      }
      ptx::cta_sync();
    }
    OCTAVO_DEVICE FragmentA fragment(int m, int step, const Thread& thread) const {
      FragmentA a;
      ptx::load_shared_b128(address(m, step, thread), a.r);
      return a;
    }
  };
  using Q = typename Select<q_in_registers(C), QFragments, SharedQ>::Type;

  static OCTAVO_DEVICE u32 stage_base(int stage) {
    return ptx::shared_base() + static_cast<u32>(stage * stage_bytes(C));
  }
  static OCTAVO_DEVICE Tile k_tile(int stage) { return {stage_base(stage)}; }
  static OCTAVO_DEVICE Tile v_tile(int stage) {
    return {stage_base(stage) + static_cast<u32>(tile_bytes(C))};
  }
  // The shared-memory addresses of the scales of K and of V for a key of the KV tile.
  static OCTAVO_DEVICE u32 k_scale(int stage, u32 key) {
    return stage_base(stage) + static_cast<u32>(2 * tile_bytes(C)) + key * 4;
  }
  static OCTAVO_DEVICE u32 v_scale(int stage, u32 key) {
    return k_scale(stage, static_cast<u32>(tile_keys(C)) + key);
  }
  // int4: the address of sixteen bytes that hold one scale or zero for each of eight neighbouring
  // keys of the KV tile. Rows are scales of K, zeros of K, scales of V and zeros of V, each group
  // by group.
  static OCTAVO_DEVICE u32 group_row(int stage, u32 key, u32 row) {
    return k_scale(stage, 0) + (key / 8 * static_cast<u32>(group_rows(C)) + row) * 16;
  }
  // Addresses of the exchange between warps at the end of a work tile. Float i of a lane's O goes
  // through the consumed stage; the reference maximum (0) and the sum (1) of a row have their own
  // memory.
  static OCTAVO_DEVICE u32 exchanged_o(int stage, u32 warp, u32 i, u32 lane) {
    constexpr u32 kFloats = kTilesM * kOTiles * 4;
    // A warp reads elements 0 and 2 of a transposed tile at once, or 1 and 3: they take other
    // banks.
    const u32 at = kTransposed ? lane ^ (i / 2 % 2 * 4) : lane;
    return stage_base(stage) + ((warp * kFloats + i) * 32 + at) * 4;
  }
  static OCTAVO_DEVICE u32 exchanged_row(u32 warp, i32 row, u32 which) {
    return stage_base(C.stages) + ((warp * C.block_m + static_cast<u32>(row)) * 2 + which) * 4;
  }
};

}  // namespace octavo::decode
