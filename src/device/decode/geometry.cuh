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
  static constexpr int kTilesM = C.block_m / 16;  // mma tiles along the query rows,
  static constexpr int kTilesN = C.block_n / 8;   // along a warp's keys,
  static constexpr int kTilesD = C.head_dim / 8;  // and along the columns of O
  static constexpr int kQkSteps = C.head_dim / 16;
  static constexpr int kPvSteps = C.block_n / 16;
  static_assert(C.block_m % 16 == 0 && C.block_n % 16 == 0, "mma tiles are 16 rows and 16 keys");
  static_assert(C.head_dim % 16 == 0, "the head dimension is padded to whole mma steps");
  static_assert(kTilesD % (C.warps * (Operands::kPairedColumns ? 2 : 1)) == 0,
                "at the end of a work tile each warp finishes an equal part of the columns, in "
                "whole pairs of tiles with an 8-bit cache");
  static_assert(exchange_o_bytes(C) <= 2 * tile_bytes(C),
                "the O of all warps fits into the stage that they have consumed");

  // The coordinates of this thread. The thread holds two rows of each 16-row mma tile, lane / 4 (r
  // = 0) and lane / 4 + 8 (r = 1), and columns 2 (lane % 4) and 2 (lane % 4) + 1 of every eight.
  struct Thread {
    u32 warp, lane;
    OCTAVO_DEVICE i32 row(int m, int r) const {
      return m * 16 + r * 8 + static_cast<i32>(lane / 4);
    }
    // The key, within the KV tile, of the thread's column e in group n of eight columns.
    OCTAVO_DEVICE u32 key(int n, int e) const {
      return warp * C.block_n + static_cast<u32>(n * 8 + e) + lane % 4 * 2;
    }
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
    float s[kTilesM][kTilesN][4];
  };
  // With an int4 cache one more tile after O accumulates the zeros of V (int4_products.cuh).
  using State = MmaState<kTilesM, kTilesD + (is_int4_kv(C) ? 1 : 0)>;
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
    constexpr u32 kFloats = kTilesM * kTilesD * 4;
    return stage_base(stage) + ((warp * kFloats + i) * 32 + lane) * 4;
  }
  static OCTAVO_DEVICE u32 exchanged_row(u32 warp, i32 row, u32 which) {
    return stage_base(C.stages) + ((warp * C.block_m + static_cast<u32>(row)) * 2 + which) * 4;
  }
};

}  // namespace octavo::decode
