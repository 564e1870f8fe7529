// SPDX-License-Identifier: Apache-2.0
#include "emulator/kernels/sm80_forward.h"

#include "emulator/kernels/sm80_forward_table.h"
#include "numeric/fork_safe.h"

namespace octavo::emulator {
namespace {

// Part n has kernels n, n + OCTAVO_PARTS, ...; this puts them together in the table's order.
template <int... kPart>
std::vector<EmulatedSm80Forward> all_sm80_parts(std::integer_sequence<int, kPart...>) {
  std::vector<EmulatedSm80Forward> all(kSm80Configs.size());
  const auto place = [&all](std::size_t first, const std::vector<EmulatedSm80Forward>& part) {
    for (std::size_t i = 0; i < part.size(); ++i) all[first + i * OCTAVO_PARTS] = part[i];
  };
  (place(kPart, sm80_forward_part<kPart>()), ...);
  return all;
}

}  // namespace

const std::vector<EmulatedSm80Forward>& sm80_forward_kernels() {
  static constinit MadeOnce<std::vector<EmulatedSm80Forward>> kernels;
  return kernels.get(
      [] { return all_sm80_parts(std::make_integer_sequence<int, OCTAVO_PARTS>()); });
}

}  // namespace octavo::emulator
