// SPDX-License-Identifier: Apache-2.0
// The tiles of the sm80 backward kernels, by head dimension. choose_sm80_backward takes the first
// row of a head dimension that fits the chip's shared memory, so each has one for 99 KB.
#pragma once

#include "config/sm80_backward.h"

namespace octavo {
namespace sm80 {

struct BackwardTiles {
  BackwardPass pass;
  int head_dim;
  int block_m, block_n, warps, warps_d, stages;
  bool own_in_registers = false;
};

// The accumulators decide: dK and dV of 32 keys by 64 columns take 128 registers of a thread, so
// wider heads divide their columns among warps. With 16 rows instead of 32 a warp would read each
// fragment of the streamed rows twice as often; only where shared memory is short it does.
inline constexpr BackwardTiles kBackwardTiles[] = {
    // clang-format off
    {.pass = BackwardPass::dkv, .head_dim = 64, .block_m = 32, .block_n = 128, .warps = 4, .warps_d = 1, .stages = 2},
    {.pass = BackwardPass::dkv, .head_dim = 96, .block_m = 64, .block_n = 128, .warps = 4, .warps_d = 2, .stages = 2},
    {.pass = BackwardPass::dkv, .head_dim = 96, .block_m = 32, .block_n = 128, .warps = 4, .warps_d = 2, .stages = 2},
    {.pass = BackwardPass::dkv, .head_dim = 128, .block_m = 64, .block_n = 128, .warps = 4, .warps_d = 2, .stages = 2},
    {.pass = BackwardPass::dkv, .head_dim = 128, .block_m = 32, .block_n = 64, .warps = 2, .warps_d = 2, .stages = 2},
    {.pass = BackwardPass::dkv, .head_dim = 192, .block_m = 64, .block_n = 64, .warps = 2, .warps_d = 4, .stages = 2},
    {.pass = BackwardPass::dkv, .head_dim = 192, .block_m = 32, .block_n = 64, .warps = 4, .warps_d = 2, .stages = 1},
    {.pass = BackwardPass::dkv, .head_dim = 256, .block_m = 64, .block_n = 64, .warps = 2, .warps_d = 4, .stages = 2},
    {.pass = BackwardPass::dkv, .head_dim = 256, .block_m = 64, .block_n = 64, .warps = 2, .warps_d = 4, .stages = 1},
    {.pass = BackwardPass::dkv, .head_dim = 256, .block_m = 32, .block_n = 32, .warps = 2, .warps_d = 2, .stages = 1},
    {.pass = BackwardPass::dq, .head_dim = 64, .block_m = 128, .block_n = 32, .warps = 4, .warps_d = 1, .stages = 2, .own_in_registers = true},
    {.pass = BackwardPass::dq, .head_dim = 96, .block_m = 128, .block_n = 32, .warps = 4, .warps_d = 1, .stages = 3},
    {.pass = BackwardPass::dq, .head_dim = 128, .block_m = 128, .block_n = 32, .warps = 4, .warps_d = 1, .stages = 2},
    {.pass = BackwardPass::dq, .head_dim = 192, .block_m = 64, .block_n = 32, .warps = 4, .warps_d = 1, .stages = 2},
    {.pass = BackwardPass::dq, .head_dim = 256, .block_m = 64, .block_n = 32, .warps = 4, .warps_d = 1, .stages = 1},
    // clang-format on
};

// The tiles of kernels with modifiers, whose registers also hold what changes the scores: a thread
// has fewer scores or fewer columns of the gradients.
inline constexpr BackwardTiles kModifiedBackwardTiles[] = {
    // clang-format off
    {.pass = BackwardPass::dkv, .head_dim = 64, .block_m = 64, .block_n = 128, .warps = 4, .warps_d = 2, .stages = 2},
    {.pass = BackwardPass::dkv, .head_dim = 96, .block_m = 32, .block_n = 128, .warps = 4, .warps_d = 2, .stages = 2},
    {.pass = BackwardPass::dkv, .head_dim = 128, .block_m = 64, .block_n = 64, .warps = 2, .warps_d = 4, .stages = 2},
    {.pass = BackwardPass::dkv, .head_dim = 128, .block_m = 64, .block_n = 64, .warps = 2, .warps_d = 4, .stages = 1},
    {.pass = BackwardPass::dkv, .head_dim = 192, .block_m = 32, .block_n = 64, .warps = 4, .warps_d = 2, .stages = 1},
    {.pass = BackwardPass::dkv, .head_dim = 256, .block_m = 64, .block_n = 64, .warps = 2, .warps_d = 4, .stages = 2},
    {.pass = BackwardPass::dkv, .head_dim = 256, .block_m = 32, .block_n = 32, .warps = 2, .warps_d = 2, .stages = 1},
    {.pass = BackwardPass::dq, .head_dim = 64, .block_m = 64, .block_n = 32, .warps = 4, .warps_d = 1, .stages = 2},
    {.pass = BackwardPass::dq, .head_dim = 96, .block_m = 64, .block_n = 32, .warps = 4, .warps_d = 1, .stages = 3},
    {.pass = BackwardPass::dq, .head_dim = 128, .block_m = 64, .block_n = 32, .warps = 4, .warps_d = 1, .stages = 2},
    {.pass = BackwardPass::dq, .head_dim = 192, .block_m = 64, .block_n = 32, .warps = 4, .warps_d = 2, .stages = 1},
    {.pass = BackwardPass::dq, .head_dim = 256, .block_m = 32, .block_n = 32, .warps = 2, .warps_d = 2, .stages = 1},
    // clang-format on
};

// Tiles for block masks with blocks of 64: their owned rows must not be in two blocks. The others
// of kModifiedBackwardTiles are small enough.
inline constexpr BackwardTiles kBlocksOf64BackwardTiles[] = {
    // clang-format off
    {.pass = BackwardPass::dkv, .head_dim = 64, .block_m = 64, .block_n = 64, .warps = 2, .warps_d = 2, .stages = 2},
    {.pass = BackwardPass::dkv, .head_dim = 96, .block_m = 32, .block_n = 64, .warps = 2, .warps_d = 2, .stages = 2},
    // clang-format on
};

// The tiles of the bias gradient: a thread holds at most 32 of its elements. The compiler spills
// with 96 and 192 columns, so heads of 72 to 96 take 128, and of 136 to 192 take 256.
inline constexpr BackwardTiles kBiasGradientTiles[] = {
    // clang-format off
    {.pass = BackwardPass::dbias, .head_dim = 64, .block_m = 64, .block_n = 64, .warps = 4, .warps_d = 1, .stages = 1},
    {.pass = BackwardPass::dbias, .head_dim = 128, .block_m = 64, .block_n = 64, .warps = 4, .warps_d = 1, .stages = 1},
    {.pass = BackwardPass::dbias, .head_dim = 256, .block_m = 64, .block_n = 32, .warps = 4, .warps_d = 1, .stages = 1},
    // clang-format on
};

OCTAVO_HD constexpr Sm80BackwardConfig with_tiles(Sm80BackwardConfig c, const BackwardTiles& t) {
  c.pass = t.pass;
  c.head_dim = t.head_dim;
  c.block_m = t.block_m;
  c.block_n = t.block_n;
  c.warps = t.warps;
  c.warps_d = t.warps_d;
  c.stages = t.stages;
  c.own_in_registers = t.own_in_registers;
  return c;
}

}  // namespace sm80
}  // namespace octavo
