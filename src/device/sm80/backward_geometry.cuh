// SPDX-License-Identifier: Apache-2.0
// Sizes, register state and shared-memory tiles of the sm80 backward kernels.
#pragma once

#include "config/row_stats.h"
#include "config/sm80_backward.h"
#include "device/backward/params.cuh"
#include "device/core/block_range.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "device/sm80/operands.cuh"
#include "device/tile/shared_tile.cuh"

namespace octavo::sm80 {

// A configuration as a type: nvcc would generate a broken host stub for a kernel template whose
// argument is a value of class type.
template <Sm80BackwardConfig kConfig>
struct BackwardConfigOf {
  static constexpr Sm80BackwardConfig value = kConfig;
};

// The kernel parameters of a configuration: only what it reads, and with a block mask all of them.
enum class BackwardParts { plain, modifiers, bias_gradient, block_mask };
OCTAVO_HD constexpr BackwardParts parts_of(const Sm80BackwardConfig& c) {
  if (c.modifiers.block_mask != 0) return BackwardParts::block_mask;
  if (c.pass == BackwardPass::dbias) return BackwardParts::bias_gradient;
  return any(c.modifiers) ? BackwardParts::modifiers : BackwardParts::plain;
}
template <BackwardParts kParts>
struct SelectBackwardParams {
  using Type = BackwardParams;
};
template <>
struct SelectBackwardParams<BackwardParts::modifiers> {
  using Type = ModifiedBackwardParams;
};
template <>
struct SelectBackwardParams<BackwardParts::bias_gradient> {
  using Type = BiasGradientParams;
};
template <>
struct SelectBackwardParams<BackwardParts::block_mask> {
  using Type = BlockMaskedBackwardParams;
};
template <class Config>
using BackwardParamsOf = typename SelectBackwardParams<parts_of(Config::value)>::Type;

// The mask and the span of a sequence, as core/block_range.cuh reads them.
struct MaskRule {
  i32 bottom_right, window_left, window_right;
};

template <class Config>
struct BackwardGeometry {
  static constexpr Sm80BackwardConfig C = Config::value;
  using Operands = OperandsOf<C.element>;
  using Tile = SharedTile<row_bytes(C)>;
  using Lane = LaneAddress<row_bytes(C)>;

  static constexpr bool kOwnsKeys = owns_keys(C);
  static constexpr int kThreads = threads(C);
  static constexpr int kOwnRows = own_rows(C);
  static constexpr int kStreamedRows = streamed_rows(C);
  static constexpr int kGradients = kOwnsKeys ? 2 : 1;               // dK and dV, or dQ
  static constexpr int kRowsPerWarp = kOwnRows / C.warps;            // of the owned rows
  static constexpr int kColumnsPerWarp = kStreamedRows / C.warps_d;  // of the scores
  static constexpr int kTilesM = kRowsPerWarp / 16;                  // mma tiles of a warp's rows,
  static constexpr int kTilesN = kColumnsPerWarp / 8;                // of its columns of scores,
  static constexpr int kTilesD = C.head_dim / C.warps_d / 8;         // and of its gradients
  static constexpr int kHeadSteps = C.head_dim / 16;         // mma steps of Q K^T and dO V^T
  static constexpr int kStreamedSteps = kStreamedRows / 16;  // mma steps of the gradients
  static_assert(element_bytes(C.element) == 2, "the tensors are f16 or bf16");
  static_assert(kOwnRows % (16 * C.warps) == 0, "a warp's rows are whole 16-row mma tiles");
  static_assert(kStreamedRows % (16 * C.warps_d) == 0,
                "a warp's columns of scores are whole mma steps");
  static_assert(C.head_dim % (16 * C.warps_d) == 0,
                "a warp's columns of the gradients are whole pairs of mma tiles");
  static_assert(row_stats::kPaddedRows % C.block_m == 0,
                "the padded rows of the row statistics are whole blocks of queries");

  // The rows that this CTA owns, and this thread's coordinates. A thread holds two rows of each
  // 16-row mma tile, lane / 4 and lane / 4 + 8, called r = 0 and r = 1.
  //
  // The dkv pass is the dq pass with queries and keys exchanged. `at` and `mask` are exchanged too,
  // so that at.q_begin and at.seqlen_q are of the owned rows in either pass: queries that see a key
  // are an interval whose ends grow with the key, by the same rule with left and right exchanged.
  struct WorkTile {
    SequenceSpan span;
    MaskRule mask;
    i32 sequence, batch, head, first_row;
    u32 warp, warp_d, lane, thread;

    OCTAVO_DEVICE u32 row(u32 m, u32 r) const {  // within the CTA
      return warp * kRowsPerWarp + m * 16 + r * 8 + lane / 4;
    }
    OCTAVO_DEVICE i32 first_column() const {  // of the warp's scores, within a streamed block
      return static_cast<i32>(warp_d) * kColumnsPerWarp;
    }
    // Groups of 16 columns of the gradients alternate between the warps along the columns: with
    // halves instead, a column's chunk would not be an XOR of lane, warp and step.
    OCTAVO_DEVICE u32 gradient_column(u32 n) const {
      return (n / 2 * C.warps_d + warp_d) * 16 + n % 2 * 8 + lane % 4 * 2;
    }
  };

  // A thread's part of a tile of scores, owned rows by streamed rows.
  struct Scores {
    float x[kTilesM][kTilesN][4];
  };
  // The same rounded to the element type, by pairs of neighbouring columns.
  struct PackedScores {
    u32 x[kTilesM][kTilesN][2];
  };
  // P or dS rounded to the element type: A operands, all of the block's streamed rows.
  struct Weights {
    FragmentA a[kTilesM][kStreamedSteps];
  };
  struct Gradient {
    float x[kTilesM][kTilesD][4];
  };
  // The owned rows as A operands, if own_in_registers.
  struct OwnFragments {
    FragmentA a[C.own_in_registers ? kTilesM : 1][C.own_in_registers ? kHeadSteps : 1];
  };

  // The modifier parameters. Only a kernel with modifiers or padding has them.
  static OCTAVO_DEVICE const ModifierParams& modifiers(const BackwardParams& p) {
    return static_cast<const ModifiedBackwardParams&>(p).modifiers;
  }
  // The block mask, of a kernel that has one.
  static OCTAVO_DEVICE const BlockMaskParams& block_mask(const BackwardParams& p) {
    return static_cast<const BlockMaskedBackwardParams&>(p).block_mask;
  }

  // Operand 0: K (dkv) or Q (dq) among the owned rows, Q or K among the streamed ones.
  // Operand 1: V or dO among the owned rows, dO or V among the streamed ones.
  static OCTAVO_DEVICE Tile own_tile(int operand) {
    return {ptx::shared_base() + static_cast<u32>(operand * (own_bytes(C) / 2))};
  }
  static OCTAVO_DEVICE Tile streamed_tile(int operand, int stage) {
    return {ptx::shared_base() + static_cast<u32>(own_bytes(C) + stage * stage_bytes(C) +
                                                  operand * (stage_bytes(C) / 2))};
  }
  // P and dS, if several warps share the columns of the gradients.
  using WeightTile = SharedTile<kStreamedRows * 2>;
  static OCTAVO_DEVICE WeightTile weight_tile(int weights) {
    return {ptx::shared_base() + static_cast<u32>(own_bytes(C) + C.stages * stage_bytes(C) +
                                                  weights * (exchange_bytes(C) / 2))};
  }
  // lse_log2, then delta, of the streamed queries (dkv).
  static OCTAVO_DEVICE u32 stats_address(int stage) {
    return ptx::shared_base() + static_cast<u32>(own_bytes(C) + C.stages * stage_bytes(C) +
                                                 exchange_bytes(C) + stage * stats_bytes(C));
  }
};

}  // namespace octavo::sm80
