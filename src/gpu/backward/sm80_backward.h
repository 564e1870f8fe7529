// The sm80 backward kernels on the host: which configurations a chip can run, the choice for a
// problem, parameters, loading and launches.
//
// Three launches on one stream: row_stats writes delta and lse_log2 into the workspace, then the
// sm80_backward kernel computes dK and dV, then dQ.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "base/error.h"
#include "config/row_stats.h"
#include "config/sm80_backward.h"
#include "device/backward/params.cuh"
#include "device/backward/row_stats.cuh"
#include "gpu/driver/context.h"
#include "gpu/driver/driver.h"
#include "octavo/octavo.hpp"

namespace octavo {

// Checks whether a chip can run a configuration. `arch` and `smem_bytes` are the chip's; a
// configuration for an older chip runs on a newer one.
Status feasible(const Sm80BackwardConfig& config, int arch, int smem_bytes);

// Checks that the kernels compute the gradients of the problem, with any alignment.
Status sm80_backward_serves(const Problem& problem);

// The three launches of a backward pass.
struct ChosenSm80Backward {
  RowStatsConfig row_stats;
  Sm80BackwardConfig dkv, dq;
  std::string reason;
};
// `load_bytes`: the row alignment of the tensors, in bytes.
ChosenSm80Backward choose_sm80_backward(const Problem& problem, const GpuInfo& gpu, int load_bytes);

// Enqueues a kernel of the backward pass; nothing if it has no CTAs.
template <class Params>
Status launch_backward(const Gpu& gpu, cuda::Function function, std::int64_t ctas, int threads,
                       int smem_bytes, Params params, Stream stream) {
  if (ctas == 0) return {};
  constexpr std::int64_t kMostCtas = std::numeric_limits<std::int32_t>::max();
  if (ctas > kMostCtas)
    return unsupported("the grid", fmt::format("{} CTAs", ctas),
                       fmt::format("up to {}", kMostCtas));
  cuda::LaunchConfig config;
  config.grid[0] = static_cast<unsigned>(ctas);
  config.block[0] = static_cast<unsigned>(threads);
  config.smem_bytes = static_cast<unsigned>(smem_bytes);
  config.stream = static_cast<cuda::StreamHandle>(stream);
  void* arguments[] = {&params};
  OCTAVO_GPU_TRY(*gpu.driver, gpu.driver->launch_kernel(&config, function, arguments, nullptr),
                 "cuLaunchKernelEx");
  return {};
}

// The largest power of two, up to 16, that divides the address of every row of every tensor.
int row_alignment(const BackwardArguments& arguments);

// Two floats for each padded query row of each head: O(S).
std::size_t row_stats_bytes(const Problem& run_problem);

// `workspace` holds row_stats_bytes() bytes at a multiple of 16. These parameters serve every
// backward kernel that reads row statistics.
RowStatsParams row_stats_params(const Problem& run_problem, const BackwardArguments& arguments,
                                void* workspace);
// The number of its CTAs; 0 if there are no queries.
std::int64_t row_stats_ctas(const Problem& run_problem);

BackwardParams sm80_backward_params(const Problem& run_problem, const BackwardArguments& arguments,
                                    const Sm80BackwardConfig& config, void* workspace);

// The number of CTAs of one pass; 0 if there is nothing to write.
std::int64_t sm80_backward_tiles(const Problem& run_problem, const Sm80BackwardConfig& config);

// Kernels that are loaded on a GPU.
struct LoadedSm80Backward {
  ChosenSm80Backward config;
  cuda::Function row_stats = nullptr;
  cuda::Function dkv = nullptr;
  cuda::Function dq = nullptr;
  std::string note{};  // a problem with the kernel cache
};
Result<LoadedSm80Backward> load_sm80_backward(const Gpu& gpu, const ChosenSm80Backward& chosen);

// `run_problem` must be validated and supported by the kernels.
Status launch_sm80_backward(const Gpu& gpu, const LoadedSm80Backward& kernels,
                            const Problem& run_problem, const BackwardArguments& arguments,
                            void* workspace, Stream stream);

}  // namespace octavo
