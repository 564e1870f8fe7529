// SPDX-License-Identifier: Apache-2.0
// The grids of the quantizer kernels, their loading and launch.
#pragma once

#include <array>
#include <mutex>
#include <tuple>
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

  const Gpu& gpu() const { return gpu_; }
  Status load(const std::vector<QuantizeConfig>& configs);
  Result<cuda::Function> function(const QuantizeConfig& config);
  Status launch(const PreparedCall& call, Stream stream);

 private:
  const Gpu& gpu_;
  std::mutex mutex_;
  std::vector<std::pair<QuantizeConfig, cuda::Function>> loaded_;
};

// The driver launches of a call's quantizers, kept so that a repeated run only updates addresses.
class QuantizeLaunches {
 public:
  QuantizeLaunches() = default;
  QuantizeLaunches(const QuantizeLaunches&) = delete;
  QuantizeLaunches& operator=(const QuantizeLaunches&) = delete;

  Status prepare(LoadedQuantizers& quantizers, const PreparedCall& call);
  // One launch of a loaded kernel. `early`: it may start before earlier work of the stream ends.
  void prepare(cuda::Function function, const QuantizeLaunch& launch, bool early);
  // Changes the addresses; everything else must be unchanged.
  void move(const Arguments& to, void* workspace) { set_addresses(call_, to, workspace); }
  Status launch(const Gpu& gpu, Stream stream);

  // The arguments of the forward kernel.
  const Arguments& arguments() const { return call_.arguments; }

 private:
  struct Launch {
    cuda::Function function = nullptr;
    cuda::LaunchConfig config;
    std::array<cuda::LaunchAttribute, 2> attributes;
  };
  void set(std::size_t index, cuda::Function function, bool early);

  PreparedCall call_;
  std::array<Launch, std::tuple_size_v<decltype(PreparedCall::launches)>> launches_;
};

// The sources of the quantizers of a problem.
std::vector<KernelSource> quantizer_sources(const Resolved& resolved, const GpuInfo& gpu,
                                            int alignment);

}  // namespace octavo
