// The shipped kernels as sources to compile, from the tables in config/.
#include "gpu/jit/shipped.h"

#include "config/sm80_shipped.h"
#include "config/sm90_shipped.h"
#include "gpu/forward/sm80_feasible.h"

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

}  // namespace octavo
