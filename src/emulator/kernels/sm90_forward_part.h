// SPDX-License-Identifier: Apache-2.0
// Instantiates every OCTAVO_PARTS-th kernel of the table.
#pragma once

#include "device/sm90/forward.cuh"
#include "emulator/kernels/sm90_forward_table.h"

namespace octavo::emulator {

template <int kIndex>
void run_sm90_forward(const Sm90ForwardParams& p) {
  using Config = sm90::ConfigOf<kSm90Configs[kIndex]>;
  sm90::sm90_forward<Config>(static_cast<const sm90::ParamsOf<Config>&>(p));
}

template <int kPart, int kParts>
std::vector<EmulatedSm90Forward> instantiate_sm90() {
  constexpr int kCount = (int{kSm90Configs.size()} - kPart + kParts - 1) / kParts;
  return []<int... i>(std::integer_sequence<int, i...>) {
    return std::vector<EmulatedSm90Forward>{
        {kSm90Configs[kPart + i * kParts], &run_sm90_forward<kPart + i * kParts>}...};
  }
  (std::make_integer_sequence<int, kCount>());
}

}  // namespace octavo::emulator
