// The quantizers from the host's side.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "gpu/context.h"
#include "gpu/kernel_source.h"
#include "gpu/prepare_operands.h"

namespace octavo {

// The quantizers of a plan, in a GPU's memory. Those for rows of 16 bytes are loaded with the plan;
// others by the first run that needs them, which a CUDA graph capture must not be.
class LoadedQuantizers {
 public:
  explicit LoadedQuantizers(const Gpu& gpu) : gpu_(gpu) {}

  Status load(const std::vector<QuantizeConfig>& configs);
  Status launch(const PreparedCall& call, Stream stream);

 private:
  Result<cuda::Function> function(const QuantizeConfig& config);

  const Gpu& gpu_;
  std::mutex mutex_;
  std::vector<std::pair<QuantizeConfig, cuda::Function>> loaded_;
};

// What the compiler is given for them.
std::vector<KernelSource> quantizer_sources(const Problem& problem, const GpuInfo& gpu,
                                            int alignment, VLayout layout = VLayout::rows);

}  // namespace octavo
