// SPDX-License-Identifier: Apache-2.0
// The shipped kernels as sources to compile, from the tables in config/.
#include "gpu/jit/shipped.h"

#include <cstdlib>
#include <tuple>

#include "config/shared_parts.h"
#include "config/sm80_shipped.h"
#include "config/sm90_shipped.h"
#include "gpu/forward/sm80_forward.h"

namespace octavo {
std::vector<Sm80ForwardConfig> shipped_configs(int arch) {
  std::vector<Sm80ForwardConfig> configs;
  for (int i = 0; i < sm80::kShippedConfigs; ++i) {
    const Sm80ForwardConfig config = sm80::shipped_config(arch, i);
    if (feasible(config, arch).ok()) configs.push_back(config);
  }
  return configs;
}

std::vector<Sm90ForwardConfig> shipped_sm90_configs() {
  std::vector<Sm90ForwardConfig> configs;
  for (const sm90::TableRow& row : sm90::kTable) {
    for (const Element element : sm90::kShippedElements) {
      if (sm90::is_shipped(row)) configs.push_back(sm90::config_of(row, element));
    }
  }
  return configs;
}

std::vector<KernelSource> shipped_kernels() {
  std::vector<KernelSource> kernels;
  for (const int arch : kShippedArchs) {
    for (const Sm80ForwardConfig& config : shipped_configs(arch)) {
      kernels.push_back(kernel_source(config));
    }
  }
  for (const Sm90ForwardConfig& config : shipped_sm90_configs()) {
    kernels.push_back(kernel_source(config));
  }
  for (const int arch : kShippedPtxArchs) {
    for (const Sm80ForwardConfig& config : shipped_configs(arch)) {
      kernels.push_back(kernel_source(config, true));
    }
  }
  return kernels;
}

namespace {

bool stands_in(const Sm80ForwardConfig& shipped, const Sm80ForwardConfig& wanted) {
  return shipped.arch == wanted.arch && shipped.element == wanted.element &&
         shipped.output == wanted.output && shipped.k_row_scales == wanted.k_row_scales &&
         includes(shipped.modifiers, wanted.modifiers) && shipped.head_dim >= wanted.head_dim &&
         shipped.head_dim_v == 0 && wanted.head_dim_v == 0 &&
         shipped.load_bytes <= wanted.load_bytes;
}

// Smaller is nearer. Padding of head_dim costs most, then a different precision of P, then
// different tile sizes, then a different split of the keys.
auto distance(const Sm80ForwardConfig& shipped, const Sm80ForwardConfig& wanted) {
  return std::tuple(shipped.head_dim, shipped.p_terms != wanted.p_terms,
                    std::abs(shipped.block_m - wanted.block_m),
                    std::abs(sm80::step_keys(shipped) - sm80::step_keys(wanted)));
}

}  // namespace

std::optional<Sm80ForwardConfig> nearest_shipped(const Sm80ForwardConfig& wanted, int chip_arch,
                                                 int smem_bytes) {
  std::optional<Sm80ForwardConfig> nearest;
  for (const Sm80ForwardConfig& shipped : shipped_configs(wanted.arch)) {
    if (!stands_in(shipped, wanted) || !feasible(shipped, chip_arch, smem_bytes).ok()) continue;
    if (!nearest || distance(shipped, wanted) < distance(*nearest, wanted)) nearest = shipped;
  }
  return nearest;
}

}  // namespace octavo
