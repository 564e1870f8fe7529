// SPDX-License-Identifier: Apache-2.0
#include "emulator/kernels/sm80_backward.h"

#include <algorithm>
#include <utility>

#include "emulator/kernels/sm80_backward_table.h"
#include "numeric/fork_safe.h"

namespace octavo::emulator {
namespace {

template <int kIndex>
void run_row_stats(const RowStatsParams& p) {
  using Config = row_stats::ConfigOf<kRowStatsConfigs[kIndex]>;
  row_stats::row_stats<Config>(static_cast<const row_stats::ParamsOf<Config>&>(p));
}
template <int kIndex>
void run_sink_gradients(const SinkGradientParams& p) {
  row_stats::sink_gradients<row_stats::ConfigOf<kRowStatsConfigs[kIndex]>>(p);
}

template <int... kIndex>
std::vector<EmulatedRowStats> every_row_stats(std::integer_sequence<int, kIndex...>) {
  return {{kRowStatsConfigs[kIndex], &run_row_stats<kIndex>, &run_sink_gradients<kIndex>}...};
}

template <int... kPart>
std::vector<EmulatedSm80Backward> all_parts(std::integer_sequence<int, kPart...>) {
  std::vector<EmulatedSm80Backward> all(kSm80BackwardConfigs.size());
  const auto place = [&all](std::size_t first, const std::vector<EmulatedSm80Backward>& part) {
    for (std::size_t i = 0; i < part.size(); ++i) all[first + i * OCTAVO_PARTS] = part[i];
  };
  (place(kPart, sm80_backward_part<kPart>()), ...);
  return all;
}

template <class Kernels, class Config>
const auto* with_config(const Kernels& kernels, Config wanted) {
  wanted.arch = kSm80BackwardArch;
  const auto found = std::find_if(kernels.begin(), kernels.end(),
                                  [&wanted](const auto& k) { return k.config == wanted; });
  return found == kernels.end() ? nullptr : &*found;
}

}  // namespace

const std::vector<EmulatedSm80Backward>& sm80_backward_kernels() {
  static constinit MadeOnce<std::vector<EmulatedSm80Backward>> kernels;
  return kernels.get([] { return all_parts(std::make_integer_sequence<int, OCTAVO_PARTS>()); });
}

const std::vector<EmulatedRowStats>& row_stats_kernels() {
  static constinit MadeOnce<std::vector<EmulatedRowStats>> kernels;
  return kernels.get([] {
    return every_row_stats(std::make_integer_sequence<int, int{kRowStatsConfigs.size()}>());
  });
}

const EmulatedSm80Backward* find_sm80_backward(Sm80BackwardConfig config) {
  return with_config(sm80_backward_kernels(), config);
}
const EmulatedRowStats* find_row_stats(RowStatsConfig config) {
  return with_config(row_stats_kernels(), config);
}

}  // namespace octavo::emulator
