// SPDX-License-Identifier: Apache-2.0
#include "emulator/kernels/sm90_backward.h"

#include <algorithm>
#include <utility>

#include "emulator/kernels/sm90_backward_table.h"
#include "numeric/fork_safe.h"

namespace octavo::emulator {
namespace {

template <int... kIndex>
std::vector<EmulatedSm90Backward> every_sm90_backward(std::integer_sequence<int, kIndex...>) {
  return {sm90_backward_part<kIndex>()...};
}

}  // namespace

const std::vector<EmulatedSm90Backward>& sm90_backward_kernels() {
  static constinit MadeOnce<std::vector<EmulatedSm90Backward>> kernels;
  return kernels.get([] {
    return every_sm90_backward(std::make_integer_sequence<int, int{kSm90BackwardConfigs.size()}>());
  });
}

const EmulatedSm90Backward* find_sm90_backward(const Sm90BackwardConfig& config) {
  const auto& kernels = sm90_backward_kernels();
  const auto found = std::find_if(kernels.begin(), kernels.end(),
                                  [&config](const auto& k) { return k.config == config; });
  return found == kernels.end() ? nullptr : &*found;
}

}  // namespace octavo::emulator
