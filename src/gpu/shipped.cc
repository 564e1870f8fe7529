// The table of shipped kernels. A kernel takes about a second of CPU time to compile and 60 KB.
#include "gpu/shipped.h"

#include "gpu/sm80_feasible.h"

namespace octavo {
namespace {

struct Tile {
  int head_dim, block_m, block_n, warps_m, warps_n, stages;
  bool q_in_registers;
};

constexpr Element kAll[] = {Element::f16,  Element::bf16, Element::e4m3,
                            Element::e5m2, Element::int8, Element::sim8};

// For every element type: long sequences, 16 rows a warp, as 32 spill in most types; and small
// grids, which need warps along the keys.
constexpr Tile kForAll[] = {
    {64, 128, 64, 8, 1, 2, true},
    {64, 32, 64, 2, 4, 2, true},
    {128, 128, 64, 8, 1, 2, false},
};
// For f16 and bf16 too.
constexpr Tile kFor16Bit[] = {
    {64, 128, 64, 4, 1, 2, true},
    {64, 64, 64, 4, 2, 2, true},
    {128, 64, 64, 4, 2, 2, true},
};

Sm80Forward config_of(int arch, Element element, const Tile& tile) {
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

}  // namespace

std::vector<Sm80Forward> shipped_configs(int arch) {
  std::vector<Sm80Forward> configs;
  const auto add = [&](Element element, const Tile& tile) {
    const Sm80Forward config = config_of(arch, element, tile);
    if (feasible(config, arch).ok()) configs.push_back(config);
  };
  for (const Element element : kAll) {
    for (const Tile& tile : kForAll) add(element, tile);
  }
  for (const Element element : {Element::f16, Element::bf16}) {
    for (const Tile& tile : kFor16Bit) add(element, tile);
  }
  return configs;
}

std::vector<KernelSource> shipped_kernels() {
  std::vector<KernelSource> kernels;
  for (const int arch : kShippedArchs) {
    for (const Sm80Forward& config : shipped_configs(arch)) {
      kernels.push_back(kernel_source(config));
    }
  }
  for (const int arch : kShippedPtxArchs) {
    for (const Sm80Forward& config : shipped_configs(arch)) {
      kernels.push_back(kernel_source(config, true));
    }
  }
  return kernels;
}

}  // namespace octavo
