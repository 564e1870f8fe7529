// SPDX-License-Identifier: Apache-2.0
// The configurations of the sm80 backward kernels that the emulator instantiates.
#pragma once

#include <array>

#include "config/sm80_backward_tiles.h"
#include "emulator/kernels/sm80_backward.h"

namespace octavo::emulator {

inline constexpr int kSm80BackwardArch = 89;

// Kernels with all modifiers: the narrowest tiles, one pair of tiles whose warps exchange weights,
// and the widest with the narrowest loads.
template <class Take>
constexpr void for_each_modified_sm80_backward(const Take& take) {
  const auto take_tiles = [&take](const sm80::BackwardTiles& tiles) {
    const bool narrowest = tiles.head_dim == 64;
    const bool widest = tiles.head_dim == 256 && tiles.stages == 1;
    if (!narrowest && !widest) return;
    Sm80BackwardConfig config = sm80::with_tiles({.arch = kSm80BackwardArch}, tiles);
    config.modifiers = {.softcap = true, .bias = true, .alibi = true, .mask = true, .padded = true};
    if (narrowest) return take(config);
    config.load_bytes = 2;
    take(config);
    config.element = Element::bf16;
    take(config);
  };
  for (const sm80::BackwardTiles& tiles : sm80::kModifiedBackwardTiles) take_tiles(tiles);
  for (const sm80::BackwardTiles& tiles : sm80::kBiasGradientTiles) take_tiles(tiles);
}

// Kernels with a block mask and all other modifiers that it may be combined with: the narrowest
// tiles, and the widest with the narrowest loads, with blocks of 64 in f16 and of 128 in bf16.
template <class Take>
constexpr void for_each_block_mask_sm80_backward(const Take& take) {
  const auto take_tiles = [&take](const sm80::BackwardTiles& tiles, int size) {
    Sm80BackwardConfig config = sm80::with_tiles({.arch = kSm80BackwardArch}, tiles);
    config.modifiers = {.softcap = true, .bias = true, .alibi = true, .mask = true};
    config.modifiers.block_mask = size;
    const bool fits = size % tiles.block_m == 0 && size % tiles.block_n == 0;
    if (tiles.head_dim == 64 && fits && (tiles.block_n == size || tiles.pass != BackwardPass::dkv))
      return take(config);
    if (tiles.head_dim != 256 || tiles.stages != 1) return;
    config.load_bytes = 2;
    config.element = size == 64 ? Element::f16 : Element::bf16;
    take(config);
  };
  for (const int size : {64, 128}) {
    for (const sm80::BackwardTiles& tiles : sm80::kBlocksOf64BackwardTiles) take_tiles(tiles, size);
    for (const sm80::BackwardTiles& tiles : sm80::kModifiedBackwardTiles) take_tiles(tiles, size);
    for (const sm80::BackwardTiles& tiles : sm80::kBiasGradientTiles) take_tiles(tiles, size);
  }
}

template <class Take>
constexpr void for_each_sm80_backward(const Take& take) {
  for (const sm80::BackwardTiles& tiles : sm80::kBackwardTiles) {
    Sm80BackwardConfig config = sm80::with_tiles({.arch = kSm80BackwardArch}, tiles);
    take(config);
    // One of the widest tiles, with the narrowest loads, replaces those that are not compiled in.
    const bool small = tiles.pass == BackwardPass::dq || tiles.block_m == 32;
    if (tiles.head_dim == 256 && small) {
      config.load_bytes = 2;
      take(config);
      config.element = Element::bf16;
      take(config);
    }
    if (tiles.head_dim != 64) continue;
    config.element = Element::bf16;
    take(config);
    config.element = Element::f16;
    for (const int load_bytes : {8, 4, 2}) {
      config.load_bytes = load_bytes;
      take(config);
    }
  }
  for_each_modified_sm80_backward(take);
  for_each_block_mask_sm80_backward(take);
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

inline constexpr auto kRowStatsConfigs = [] {
  std::array<RowStatsConfig, 16> configs{};
  std::size_t count = 0;
  for (const bool padded : {false, true})
    for (const Element element : {Element::f16, Element::bf16})
      for (const int load_bytes : {16, 8, 4, 2})
        configs[count++] = {.arch = kSm80BackwardArch,
                            .element = element,
                            .load_bytes = load_bytes,
                            .padded = padded};
  return configs;
}();

// Every OCTAVO_PARTS-th kernel from kPart on.
template <int kPart>
std::vector<EmulatedSm80Backward> sm80_backward_part();

}  // namespace octavo::emulator
