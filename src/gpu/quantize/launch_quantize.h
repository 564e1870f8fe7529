// The grids of the quantizer kernels, their loading and launch.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "gpu/driver/context.h"
#include "gpu/jit/kernel_source.h"
#include "gpu/quantize/operand_conversion.h"
#include "gpu/quantize/prepare_operands.h"

namespace octavo {

// For one operand. A second pass keeps the number of partial maxima that the first pass set.
void set_grid(const Conversion& x, QuantizeLaunch& launch);
// For all three operands; the second of two launches keeps that number too.
void set_grid(const Conversions& x, QuantizeLaunch& launch);

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
