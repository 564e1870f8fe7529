// SPDX-License-Identifier: Apache-2.0
// The configurations of the sm80 forward kernels that the emulator instantiates, and the part that
// instantiates each.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "config/sm80_shipped.h"
#include "emulator/kernels/sm80_forward.h"

namespace octavo::emulator {

// The chip of the emulated kernels: an L4, the first with native FP8.
inline constexpr int kSm80Arch = 89;

inline constexpr Element kSm80Elements[] = {Element::f16,  Element::bf16, Element::e4m3,
                                            Element::e5m2, Element::int8, Element::sim8};

// A small tile of an element type, for variants that no shipped kernel has.
constexpr Sm80ForwardConfig small_config(Element element) {
  Sm80ForwardConfig config;
  config.arch = kSm80Arch;
  config.element = element;
  config.output.element = element == Element::bf16 ? Element::bf16 : Element::f16;
  config.block_m = 32;
  config.warps_m = 2;
  config.warps_n = 4;
  return config;
}

constexpr Sm80ForwardConfig with_modifiers(Sm80ForwardConfig config) {
  config.modifiers = {
      .softcap = true, .bias = true, .alibi = true, .mask = true, .sinks = true, .padded = true};
  return config;
}

// Block masks: a kernel with every modifier whose steps are parts of a block, one without other
// modifiers whose steps are half a block, and one with 8-bit elements.
template <class Take>
constexpr void for_each_block_mask_config(const Take& take) {
  Sm80ForwardConfig config = with_modifiers(small_config(Element::f16));
  config.block_n = 32;
  config.warps_n = 2;
  config.load_bytes = 4;
  config.modifiers.padded = false;
  config.modifiers.block_mask = 64;
  take(config);
  config = small_config(Element::bf16);
  config.head_dim = 128;
  config.block_m = 64;
  config.warps_n = 1;
  config.modifiers.block_mask = 128;
  take(config);
  config = small_config(Element::e4m3);
  config.warps_n = 1;
  config.modifiers.block_mask = 64;
  take(config);
}

// V with more or fewer columns than Q and K, in 16 bits: rows of any alignment, warps of 32 rows,
// every modifier.
template <class Take>
constexpr void for_each_other_v_config(const Take& take) {
  Sm80ForwardConfig config = small_config(Element::bf16);
  config.head_dim_v = 128;
  take(config);
  config = small_config(Element::f16);
  config.head_dim = 192;
  config.head_dim_v = 128;
  config.warps_m = 1;
  config.warps_n = 1;
  config.q_in_registers = false;
  config.k_tiles = 2;
  take(config);
  config = with_modifiers(small_config(Element::f16));
  config.head_dim = 128;
  config.head_dim_v = 64;
  config.load_bytes = 2;
  config.warps_n = 2;
  take(config);
}

// More than 256 columns: a single stage, whose V has a barrier of its own; two tiles of V's columns
// alone; and every modifier, with rows of any alignment.
template <class Take>
constexpr void for_each_wide_config(const Take& take) {
  Sm80ForwardConfig config = small_config(Element::f16);
  config.head_dim = 512;
  config.block_n = 16;
  config.warps_n = 1;
  config.stages = 1;
  config.v_barrier = true;
  config.q_in_registers = false;
  take(config);
  config.head_dim = 64;
  config.head_dim_v = 512;
  config.stages = 2;
  config.v_barrier = false;
  take(config);
  config = with_modifiers(config);
  config.element = config.output.element = Element::bf16;
  config.head_dim = 384;
  config.head_dim_v = 0;
  config.load_bytes = 2;
  take(config);
}

template <class Take>
constexpr void for_each_sm80_config(const Take& take) {
  for (int i = 0; i < sm80::kShippedConfigs; ++i) {
    Sm80ForwardConfig config = sm80::shipped_config(kSm80Arch, i);
    take(config);
    // Hopper may ship a different configuration.
    Sm80ForwardConfig of_hopper = sm80::shipped_config(90, i);
    of_hopper.arch = kSm80Arch;
    if (of_hopper != config) take(of_hopper);
  }
  for (const Element element : kSm80Elements) {
    Sm80ForwardConfig config = small_config(element);
    if (element_bytes(element) == 1) {
      config.k_row_scales = true;
      take(config);
      config.k_row_scales = false;
    } else {
      for (const int load_bytes : {8, 4, 2}) {
        config.load_bytes = load_bytes;
        take(config);
      }
      config.load_bytes = 16;
    }
    config.output.element = Element::f32;
    take(config);
  }
  // 8-bit outputs and amax, for accumulators with columns in order and with alternating columns;
  // and rows whose alignment allows no wide store.
  Sm80ForwardConfig config = small_config(Element::f16);
  config.output.amax = true;
  take(config);
  config.output.element = Element::e4m3;
  take(config);
  config.load_bytes = 2;
  take(config);
  config = small_config(Element::e4m3);
  config.output.element = Element::int8;
  config.output.amax = true;
  take(config);
  config = small_config(Element::sim8);
  config.output.element = Element::e5m2;
  config.output.amax = true;
  take(config);
  // Every modifier, and padding, which 16-bit types have: rows of any alignment, two head
  // dimensions, and each way to scale scores.
  take(with_modifiers(small_config(Element::f16)));
  config = with_modifiers(small_config(Element::f16));
  config.load_bytes = 2;
  config.head_dim = 128;
  config.warps_n = 2;
  take(config);
  config.element = config.output.element = Element::bf16;
  take(config);
  take(with_modifiers(small_config(Element::bf16)));
  for (const Element element : {Element::e4m3, Element::int8, Element::sim8}) {
    config = with_modifiers(small_config(element));
    config.modifiers.padded = false;
    config.k_row_scales = element == Element::int8;
    take(config);
  }
  for_each_block_mask_config(take);
  for_each_other_v_config(take);
  for_each_wide_config(take);
}

constexpr int count_sm80_configs() {
  int count = 0;
  for_each_sm80_config([&count](const Sm80ForwardConfig&) { ++count; });
  return count;
}

inline constexpr auto kSm80Configs = [] {
  std::array<Sm80ForwardConfig, count_sm80_configs()> configs{};
  std::size_t count = 0;
  for_each_sm80_config([&](const Sm80ForwardConfig& c) { configs[count++] = c; });
  return configs;
}();

template <int kPart>
std::vector<EmulatedSm80Forward> sm80_forward_part();

}  // namespace octavo::emulator
