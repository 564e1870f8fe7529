// Which configurations are instantiated, and in which of the files that share the work.
#pragma once

#include <iterator>
#include <utility>
#include <vector>

#include "config/sm80_shipped.h"
#include "emulator/sm80_forward.h"

namespace octavo::emulator {

// The chip of the emulator's kernels: an L4, the first with native FP8.
inline constexpr int kSm80Arch = 89;

// A small tile of an element type, with a change that no shipped kernel has.
inline constexpr Element kRowScaleElements[] = {Element::e4m3, Element::e5m2, Element::int8,
                                                Element::sim8};
inline constexpr int kNarrowLoads[] = {8, 4, 2};
inline constexpr int kSm80Kernels =
    sm80::kShippedConfigs + int{std::size(kRowScaleElements)} + int{std::size(kNarrowLoads)};

constexpr Sm80Forward small_config(Element element) {
  Sm80Forward config;
  config.arch = kSm80Arch;
  config.element = element;
  config.block_m = 32;
  config.warps_m = 2;
  config.warps_n = 4;
  return config;
}

constexpr Sm80Forward sm80_kernel_config(int index) {
  if (index < sm80::kShippedConfigs) return sm80::shipped_config(kSm80Arch, index);
  index -= sm80::kShippedConfigs;
  if (index < int{std::size(kRowScaleElements)}) {
    Sm80Forward config = small_config(kRowScaleElements[index]);
    config.k_row_scales = true;
    return config;
  }
  Sm80Forward config = small_config(Element::f16);
  config.load_bytes = kNarrowLoads[index - int{std::size(kRowScaleElements)}];
  return config;
}

template <int kPart>
std::vector<EmulatedSm80Forward> sm80_forward_part();

}  // namespace octavo::emulator
