// SPDX-License-Identifier: Apache-2.0
// Instantiates every OCTAVO_PARTS-th kernel of the table.
#pragma once

#include <utility>

#include "device/sm80/backward.cuh"
#include "device/sm80/bias_gradient.cuh"
#include "emulator/kernels/sm80_backward_table.h"

namespace octavo::emulator {

template <int kIndex>
void run_sm80_backward(const BackwardParams& p) {
  using Config = sm80::BackwardConfigOf<kSm80BackwardConfigs[kIndex]>;
  if constexpr (Config::value.pass == BackwardPass::dbias)
    sm80::sm80_bias_gradient<Config>(static_cast<const sm80::BackwardParamsOf<Config>&>(p));
  else
    sm80::sm80_backward<Config>(static_cast<const sm80::BackwardParamsOf<Config>&>(p));
}

template <int kPart, int kParts>
std::vector<EmulatedSm80Backward> instantiate_backward() {
  constexpr int kCount = (int{kSm80BackwardConfigs.size()} - kPart + kParts - 1) / kParts;
  return []<int... i>(std::integer_sequence<int, i...>) {
    return std::vector<EmulatedSm80Backward>{
        {kSm80BackwardConfigs[kPart + i * kParts], &run_sm80_backward<kPart + i * kParts>}...};
  }
  (std::make_integer_sequence<int, kCount>());
}

}  // namespace octavo::emulator
