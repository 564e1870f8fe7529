// Instantiates every OCTAVO_PARTS-th kernel of the table.
#pragma once

#include <utility>

#include "device/sm80/backward.cuh"
#include "emulator/sm80_backward_table.h"

namespace octavo::emulator {

template <int kIndex>
void run_sm80_backward(const BackwardParams& p) {
  sm80::sm80_backward<sm80::BackwardConfigOf<kSm80BackwardConfigs[kIndex]>>(p);
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
