// Loads and launches the quantizer kernels.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "gpu/driver/context.h"
#include "gpu/jit/kernel_source.h"
#include "gpu/quantize/prepare_operands.h"

namespace octavo {

// The loaded quantizers of a plan. Those for 16-byte aligned rows are loaded with the plan, others
// by the first run that needs them; that run must not be inside a CUDA graph capture.
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

// The sources of the quantizers of a problem.
std::vector<KernelSource> quantizer_sources(const Problem& problem, const GpuInfo& gpu,
                                            int alignment, VLayout layout = VLayout::rows);

}  // namespace octavo
