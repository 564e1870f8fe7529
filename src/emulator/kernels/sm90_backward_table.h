// SPDX-License-Identifier: Apache-2.0
// The configurations of the Hopper backward kernels that the emulator instantiates.
#pragma once

#include <array>

#include "emulator/kernels/sm90_backward.h"

namespace octavo::emulator {

// The tiles for a head dimension with all modifiers.
constexpr Sm90BackwardConfig with_all_modifiers(int head_dim, Element element) {
  Sm90BackwardConfig c = sm90::backward::tiles_for(head_dim, element);
  c.modifiers = {.softcap = true, .alibi = true, .padded = true};
  return c;
}

inline constexpr std::array<Sm90BackwardConfig, 14> kSm90BackwardConfigs = {
    sm90::backward::tiles_for(64, Element::bf16),
    sm90::backward::tiles_for(128, Element::bf16),
    sm90::backward::tiles_for(256, Element::bf16),
    sm90::backward::tiles_for(64, Element::f16),
    sm90::backward::tiles_for(80, Element::f16),
    sm90::backward::tiles_for(96, Element::f16),
    sm90::backward::tiles_for(128, Element::f16),
    sm90::backward::tiles_for(192, Element::f16),
    sm90::backward::tiles_for(256, Element::f16),
    sm90::backward::small_tiles_for(64, Element::f16),
    sm90::backward::small_tiles_for(128, Element::f16),
    with_all_modifiers(64, Element::f16),
    with_all_modifiers(128, Element::bf16),
    with_all_modifiers(256, Element::f16),
};

// The kernels of one configuration. Each is a source file of its own, so that they compile in
// parallel.
template <int kIndex>
EmulatedSm90Backward sm90_backward_part();

}  // namespace octavo::emulator
