// SPDX-License-Identifier: Apache-2.0
// Sizes and register state of the sm80 forward kernel, derived from its configuration.
#pragma once

#include "config/shared_parts.h"
#include "config/sm80_forward.h"
#include "device/core/block_mask.cuh"
#include "device/core/block_range.cuh"
#include "device/core/exp2.cuh"
#include "device/core/mma_state.cuh"
#include "device/core/params.cuh"
#include "device/core/score_rows.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "device/sm80/operands.cuh"
#include "device/tile/shared_tile.cuh"

namespace octavo::sm80 {

// A configuration as a type: nvcc would generate a broken host stub for a kernel template whose
// argument is a value of class type.
template <Sm80ForwardConfig kConfig>
struct ConfigOf {
  static constexpr Sm80ForwardConfig value = kConfig;
};

// The kernel parameters of a configuration: only what it reads.
template <bool kHasModifiers, bool kHasBlockMask>
struct SelectParams {
  using Type = ForwardParams;
};
template <>
struct SelectParams<true, false> {
  using Type = ModifiedForwardParams;
};
template <>
struct SelectParams<true, true> {
  using Type = BlockMaskedForwardParams;
};
template <class Config>
using ParamsOf = typename SelectParams<any(Config::value.modifiers),
                                       Config::value.modifiers.block_mask != 0>::Type;

// The part of a row tile that says which columns of V and O it has, if there are more than one tile
// of columns: the first one, and how many columns of the problem begin there.
template <int kColumnTiles>
struct ColumnTile {
  i32 first_column, columns_left;
};
template <>
struct ColumnTile<1> {};

template <class Config>
struct Geometry {
  static constexpr Sm80ForwardConfig C = Config::value;
  using Operands = OperandsOf<C.element>;
  using Tile = SharedTile<row_bytes(C)>;
  using VTile = SharedTile<v_row_bytes(C)>;
  using OutTile = SharedTile<v_columns(C) * element_bytes(C.output.element)>;

  static constexpr int kMathThreads = math_threads(C);
  static constexpr int kThreads = threads(C);
  // The threads that copy: the producer warps, which come last, or all.
  static constexpr int kCopyThreads = C.producer_warps > 0 ? kThreads - kMathThreads : kThreads;
  static constexpr int kRowsPerWarp = C.block_m / C.warps_m;
  static constexpr int kTilesM = kRowsPerWarp / 16;  // mma tiles of a warp along the rows,
  static constexpr int kTilesN = C.block_n / 8;      // along the keys,
  static constexpr int kTilesD = v_columns(C) / 8;   // and along the columns of O
  static constexpr int kQkSteps = C.head_dim / Operands::kQkColumns;
  static constexpr int kPvSteps = C.block_n / Operands::kPvKeys;
  static constexpr bool kRowScales = element_bytes(C.element) == 1;
  static_assert(C.block_m % (16 * C.warps_m) == 0, "a warp's rows are whole 16-row mma tiles");
  static_assert(C.block_n % Operands::kPvKeys == 0, "a block's keys are whole mma steps");
  static_assert(C.head_dim % Operands::kQkColumns == 0,
                "the head dimension is padded to whole mma steps");
  static_assert(C.head_dim_v == 0 || (element_bytes(C.element) == 2 && C.head_dim_v % 16 == 0),
                "V has other columns than Q and K, in pairs of tiles, only in 16 bits");
  static constexpr int kBlockMask = C.modifiers.block_mask;
  static_assert(kBlockMask % C.block_m == 0 && kBlockMask % step_keys(C) == 0,
                "a tile's rows, and the keys of a step, lie in one block of the mask");
  static_assert(kBlockMask == 0 || C.block_n % 32 == 0, "a block's keys are whole words of bits");

  // The problem's columns of V and O.
  static OCTAVO_DEVICE i32 head_dim_v(const ForwardParams& p) {
    return C.head_dim_v > 0 ? p.head_dim_v : p.head_dim;
  }
  static_assert(column_tiles(C) == 1 || (element_bytes(C.element) == 2 && v_columns(C) % 16 == 0),
                "only 16-bit V has two tiles of columns");

  // The block_m query rows of this CTA's work tile, and this thread's coordinates in it. A thread
  // holds two rows of each 16-row mma tile, lane / 4 and lane / 4 + 8, called r = 0 and r = 1.
  struct RowTile : ColumnTile<column_tiles(C)> {
    SequenceSpan span;
    i32 sequence, batch, head, first_row;
    u32 warp_m, warp_n, lane, thread;
    BlockRow blocks;                             // with a block mask only
    OCTAVO_DEVICE u32 row(u32 m, u32 r) const {  // within the CTA
      return warp_m * kRowsPerWarp + m * 16 + r * 8 + lane / 4;
    }
  };

  // A thread's part of the score tile: for both rows r, columns 2 (lane % 4) and the next of every
  // eight.
  struct Scores {
    float s[kTilesM][kTilesN][4];
  };
  struct State : MmaState<kTilesM, kTilesD> {
    float scale[kTilesM][2];  // from raw scores to log2 units; one value if kRowScales is off
    OCTAVO_DEVICE float raw_scale_of(int m, int r) const {
      return kRowScales ? scale[m][r] : scale[0][0];
    }
    // From the scores of the softmax to log2 units.
    OCTAVO_DEVICE float scale_of(int m, int r) const {
      return changes_scores(C.modifiers) ? 1.0f : raw_scale_of(m, r);
    }
  };
  struct QFragments {
    FragmentA a[C.q_in_registers ? kTilesM : 1][C.q_in_registers ? kQkSteps : 1];
  };

  // The modifier parameters. Only a kernel with modifiers or padding has them.
  static OCTAVO_DEVICE const ModifierParams& modifiers(const ForwardParams& p) {
    return static_cast<const ModifiedForwardParams&>(p).modifiers;
  }

  static OCTAVO_DEVICE const BlockMaskParams& block_mask(const ForwardParams& p) {
    return static_cast<const BlockMaskedForwardParams&>(p).block_mask;
  }
  // With a block mask: the entry of the lists that a step belongs to, and the step's first key.
  static constexpr int kStepsOfBlock = max_of(kBlockMask / step_keys(C), 1);
  static OCTAVO_DEVICE ListedBlock block_of_step(const ForwardParams& p, const RowTile& tile,
                                                 i32 step) {
    return listed_block</*kOverlaps=*/false>(block_mask(p), tile.blocks, step / kStepsOfBlock);
  }
  static OCTAVO_DEVICE i32 first_key(const ListedBlock& of, i32 step) {
    return of.block * kBlockMask + step % kStepsOfBlock * step_keys(C);
  }

  // Barrier of the math warps.
  static OCTAVO_DEVICE void math_sync(OCTAVO_SITE) {
    if constexpr (C.producer_warps == 0)
      ptx::cta_sync(OCTAVO_SAME_SITE);
    else
      ptx::named_barrier_sync(1, kMathThreads OCTAVO_AND_SAME_SITE);
  }

  static OCTAVO_DEVICE Tile q_tile() { return {ptx::shared_base()}; }
  static OCTAVO_DEVICE Tile k_tile(int stage) {
    return {ptx::shared_base() + static_cast<u32>(q_bytes(C) + stage * kv_stage_bytes(C))};
  }
  static OCTAVO_DEVICE VTile v_tile(int stage) {
    return {k_tile(stage).base + static_cast<u32>(k_bytes(C))};
  }
};

// 2^(scale * score - ref_max)
template <ExpForm kForm>
OCTAVO_DEVICE float weight_of(float score, float scale, float ref_max) {
  if constexpr (kForm == ExpForm::polynomial)
    return exp2_polynomial(ptx::fused_multiply_add(score, scale, -ref_max));
  else
    return p_of_score(score, scale, ref_max);
}
// The score in log2 units. It is never -infinity, so that it can be subtracted from itself.
OCTAVO_DEVICE float exponent_of(float score, float scale) {
  return ptx::max_f32(score * scale, kLowest);
}

}  // namespace octavo::sm80
