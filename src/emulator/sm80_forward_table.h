// Which configurations are instantiated, and in which of the files that share the work.
#pragma once

#include <utility>
#include <vector>

#include "config/sm80_shipped.h"
#include "emulator/sm80_forward.h"

namespace octavo::emulator {

// The chip of the emulator's kernels: an L4, the first with native FP8.
inline constexpr int kSm80Arch = 89;

inline constexpr Element kRowScaleElements[] = {Element::e4m3, Element::e5m2, Element::int8,
                                                Element::sim8};
inline constexpr int kNarrowLoads[] = {8, 4, 2};
inline constexpr int kSm80Kernels =
    sm80::kShippedConfigs + sm80::size_of(kRowScaleElements) + sm80::size_of(kNarrowLoads);

constexpr Sm80Forward sm80_kernel_config(int index) {
  if (index < sm80::kShippedConfigs) return sm80::shipped_config(kSm80Arch, index);
  index -= sm80::kShippedConfigs;
  const sm80::ShippedTile& small = sm80::kTilesForAll[1];
  if (index < sm80::size_of(kRowScaleElements)) {
    Sm80Forward config = sm80::shipped_config_of(kSm80Arch, kRowScaleElements[index], small);
    config.k_row_scales = true;
    return config;
  }
  index -= sm80::size_of(kRowScaleElements);
  Sm80Forward config = sm80::shipped_config_of(kSm80Arch, Element::f16, small);
  config.load_bytes = kNarrowLoads[index];
  return config;
}

template <int kPart>
std::vector<EmulatedSm80Forward> sm80_forward_part();

}  // namespace octavo::emulator
