// The configurations to instantiate.
#pragma once

#include <array>

#include "config/sm80_backward_tiles.h"
#include "emulator/sm80_backward.h"

namespace octavo::emulator {

inline constexpr int kSm80BackwardArch = 89;

template <class Take>
constexpr void for_each_sm80_backward(const Take& take) {
  for (const sm80::BackwardTiles& tiles : sm80::kBackwardTiles) {
    Sm80BackwardConfig config = sm80::with_tiles({.arch = kSm80BackwardArch}, tiles);
    take(config);
    if (tiles.head_dim != 64) continue;
    config.element = Element::bf16;
    take(config);
    config.element = Element::f16;
    for (const int load_bytes : {8, 4, 2}) {
      config.load_bytes = load_bytes;
      take(config);
    }
  }
}

inline constexpr auto kSm80BackwardConfigs = [] {
  constexpr int kCount = [] {
    int count = 0;
    for_each_sm80_backward([&count](const Sm80BackwardConfig&) { ++count; });
    return count;
  }();
  std::array<Sm80BackwardConfig, kCount> configs{};
  std::size_t count = 0;
  for_each_sm80_backward([&](const Sm80BackwardConfig& c) { configs[count++] = c; });
  return configs;
}();

inline constexpr std::array<RowStatsConfig, 5> kRowStatsConfigs = {{
    {.arch = kSm80BackwardArch},
    {.arch = kSm80BackwardArch, .element = Element::bf16},
    {.arch = kSm80BackwardArch, .load_bytes = 8},
    {.arch = kSm80BackwardArch, .load_bytes = 4},
    {.arch = kSm80BackwardArch, .load_bytes = 2},
}};

// Every OCTAVO_PARTS-th kernel from kPart on.
template <int kPart>
std::vector<EmulatedSm80Backward> sm80_backward_part();

}  // namespace octavo::emulator
