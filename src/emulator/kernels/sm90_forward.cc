// SPDX-License-Identifier: Apache-2.0
#include "emulator/kernels/sm90_forward.h"

#include "emulator/kernels/sm90_forward_table.h"
#include "numeric/fork_safe.h"

namespace octavo::emulator {
namespace {

// Part n has kernels n, n + OCTAVO_PARTS, ...; this puts them together in the table's order.
template <int... kPart>
std::vector<EmulatedSm90Forward> all_sm90_parts(std::integer_sequence<int, kPart...>) {
  std::vector<EmulatedSm90Forward> all(kSm90Configs.size());
  const auto place = [&all](std::size_t first, const std::vector<EmulatedSm90Forward>& part) {
    for (std::size_t i = 0; i < part.size(); ++i) all[first + i * OCTAVO_PARTS] = part[i];
  };
  (place(kPart, sm90_forward_part<kPart>()), ...);
  return all;
}

}  // namespace

const std::vector<EmulatedSm90Forward>& sm90_forward_kernels() {
  static constinit MadeOnce<std::vector<EmulatedSm90Forward>> kernels;
  return kernels.get(
      [] { return all_sm90_parts(std::make_integer_sequence<int, OCTAVO_PARTS>()); });
}

}  // namespace octavo::emulator
