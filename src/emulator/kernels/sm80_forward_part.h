// SPDX-License-Identifier: Apache-2.0
// Instantiates every OCTAVO_PARTS-th kernel of the table.
#pragma once

#include "device/sm80/forward.cuh"
#include "emulator/kernels/sm80_forward_table.h"

namespace octavo::emulator {

template <int kIndex>
void run_sm80_forward(const ForwardParams& p) {
  using Config = sm80::ConfigOf<kSm80Configs[kIndex]>;
  sm80::sm80_forward<Config>(static_cast<const sm80::ParamsOf<Config>&>(p));
}

template <int kPart, int kParts>
std::vector<EmulatedSm80Forward> instantiate() {
  constexpr int kCount = (int{kSm80Configs.size()} - kPart + kParts - 1) / kParts;
  return []<int... i>(std::integer_sequence<int, i...>) {
    return std::vector<EmulatedSm80Forward>{
        {kSm80Configs[kPart + i * kParts], &run_sm80_forward<kPart + i * kParts>}...};
  }
  (std::make_integer_sequence<int, kCount>());
}

}  // namespace octavo::emulator
