// SPDX-License-Identifier: Apache-2.0
// The shipped sm80 forward kernels, which are compiled when the library is built and which the
// emulator can run. A kernel costs about a second of NVRTC's CPU time and 60 KB.
#pragma once

#include "config/element.h"
#include "config/portable.h"
#include "config/sm80_forward.h"

namespace octavo {
namespace sm80 {

struct ShippedTile {
  int element_count;
  Element elements[3];
  int head_dim, block_m, block_n, warps_m, warps_n;
  bool q_in_registers;
  int k_tiles = 8;
  int p_terms = 1;
};

// The tiles that choose_sm80_forward uses. For each head_dim the tiles for long sequences come
// first, then those for small grids, which need warps along the keys.
inline constexpr ShippedTile kShippedTiles[] = {
    {2, {Element::f16, Element::bf16}, 64, 128, 128, 4, 1, false},
    {2, {Element::f16, Element::bf16}, 64, 64, 64, 4, 2, true},
    {3, {Element::f16, Element::bf16, Element::sim8}, 64, 32, 64, 2, 4, true},
    {2, {Element::f16, Element::bf16}, 128, 128, 64, 4, 1, false, 2},
    {2, {Element::f16, Element::bf16}, 128, 64, 64, 4, 2, true},
    {2, {Element::f16, Element::bf16}, 128, 32, 64, 2, 2, true},
    {1, {Element::sim8}, 64, 128, 64, 4, 1, false},
    {1, {Element::sim8}, 128, 128, 64, 8, 1, false},
    {3, {Element::e4m3, Element::e5m2, Element::int8}, 64, 128, 64, 8, 1, true},
    {3, {Element::e4m3, Element::e5m2, Element::int8}, 64, 32, 64, 2, 4, true},
    {3, {Element::e4m3, Element::e5m2, Element::int8}, 128, 128, 64, 8, 1, false},
    {2, {Element::e4m3, Element::e5m2}, 64, 32, 64, 2, 4, true, 8, 2},
};

// Hopper has no FP8 mma.sync and converts to fp16 instead. At head_dim 128 the conversions need the
// registers of half the scores.
OCTAVO_HD constexpr void fit_registers(Sm80ForwardConfig& c) {
  const bool fp8 = c.element == Element::e4m3 || c.element == Element::e5m2;
  if (c.arch == 90 && fp8 && c.head_dim == 128) c.block_n = min_of(c.block_n, 32);
}

OCTAVO_HD constexpr int count_shipped() {
  int count = 0;
  for (const ShippedTile& tile : kShippedTiles) count += tile.element_count;
  return count;
}
inline constexpr int kShippedConfigs = count_shipped();

// Configuration `index` of the table, for a chip. Not every chip can run every one of them.
OCTAVO_HD constexpr Sm80ForwardConfig shipped_config(int arch, int index) {
  Sm80ForwardConfig config;
  for (const ShippedTile& tile : kShippedTiles) {
    if (index >= 0 && index < tile.element_count) {
      config.arch = arch;
      config.element = tile.elements[index];
      config.output.element = config.element == Element::bf16 ? Element::bf16 : Element::f16;
      config.head_dim = tile.head_dim;
      config.block_m = tile.block_m;
      config.block_n = tile.block_n;
      config.warps_m = tile.warps_m;
      config.warps_n = tile.warps_n;
      config.q_in_registers = tile.q_in_registers;
      config.k_tiles = tile.k_tiles;
      config.p_terms = tile.p_terms;
      fit_registers(config);
    }
    index -= tile.element_count;
  }
  return config;
}

}  // namespace sm80
}  // namespace octavo
