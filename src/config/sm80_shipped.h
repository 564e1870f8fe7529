// The table of shipped sm80 forward kernels: what is compiled for GPUs when the library is built,
// and what the emulator can run. A kernel takes NVRTC about a second of CPU time and 60 KB.
#pragma once

#include "config/element.h"
#include "config/portable.h"
#include "config/sm80_forward.h"

namespace octavo {
namespace sm80 {

struct ShippedTile {
  int head_dim, block_m, block_n, warps_m, warps_n, stages;
  bool q_in_registers;
};

inline constexpr Element kShippedElements[] = {Element::f16,  Element::bf16, Element::e4m3,
                                               Element::e5m2, Element::int8, Element::sim8};
inline constexpr int kShipped16BitElements = 2;  // the first of them

// For every element type: long sequences, 16 rows a warp, as 32 spill in most types; and small
// grids, which need warps along the keys.
inline constexpr ShippedTile kTilesForAll[] = {
    {64, 128, 64, 8, 1, 2, true},
    {64, 32, 64, 2, 4, 2, true},
    {128, 128, 64, 8, 1, 2, false},
};
// For f16 and bf16 too.
inline constexpr ShippedTile kTilesFor16Bit[] = {
    {64, 128, 64, 4, 1, 2, true},
    {64, 64, 64, 4, 2, 2, true},
    {128, 64, 64, 4, 2, 2, true},
};

template <class T, int kSize>
OCTAVO_HD constexpr int size_of(const T (&)[kSize]) {
  return kSize;
}

inline constexpr int kShippedConfigs = size_of(kShippedElements) * size_of(kTilesForAll) +
                                       kShipped16BitElements * size_of(kTilesFor16Bit);

OCTAVO_HD constexpr Sm80Forward shipped_config_of(int arch, Element element,
                                                  const ShippedTile& tile) {
  Sm80Forward config;
  config.arch = arch;
  config.element = element;
  config.out = element == Element::bf16 ? Element::bf16 : Element::f16;
  config.head_dim = tile.head_dim;
  config.block_m = tile.block_m;
  config.block_n = tile.block_n;
  config.warps_m = tile.warps_m;
  config.warps_n = tile.warps_n;
  config.stages = tile.stages;
  config.q_in_registers = tile.q_in_registers;
  return config;
}

// Configuration `index` of the table, for a chip. Not every chip can run every one of them.
OCTAVO_HD constexpr Sm80Forward shipped_config(int arch, int index) {
  constexpr int kForAll = size_of(kShippedElements) * size_of(kTilesForAll);
  if (index < kForAll)
    return shipped_config_of(arch, kShippedElements[index / size_of(kTilesForAll)],
                             kTilesForAll[index % size_of(kTilesForAll)]);
  index -= kForAll;
  return shipped_config_of(arch, kShippedElements[index / size_of(kTilesFor16Bit)],
                           kTilesFor16Bit[index % size_of(kTilesFor16Bit)]);
}

}  // namespace sm80
}  // namespace octavo
