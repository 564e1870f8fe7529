// Parameters, loading and launch of the sm80 forward kernel.
#pragma once

#include <string>

#include "config/sm80_forward.h"
#include "device/core/params.cuh"
#include "gpu/driver/context.h"
#include "octavo/octavo.hpp"

namespace octavo {

// The largest power of two, up to 16, that divides the address of every row of every tensor.
int row_alignment(const Arguments& arguments);

// `run_problem` must be validated and supported by the kernel, and `config` must fit it.
ForwardParams sm80_forward_params(const Problem& run_problem, const Arguments& arguments,
                                  const Sm80ForwardConfig& config);

// The number of work tiles; 0 if there is nothing to do.
std::int64_t sm80_forward_tiles(const Problem& run_problem, const Sm80ForwardConfig& config);

// A kernel that is loaded on a GPU.
struct LoadedSm80Forward {
  Sm80ForwardConfig config;
  cuda::Function function = nullptr;
  int resident_blocks = 0;  // CTAs the GPU holds at once; for persistent kernels
  std::string note{};       // a cache problem, or that the kernel replaces another
};
Result<LoadedSm80Forward> load_sm80_forward(const Gpu& gpu, const Sm80ForwardConfig& config);

// If that kernel is not available and cannot be compiled, loads the nearest shipped one that
// supports the same problems.
Result<LoadedSm80Forward> load_nearest_sm80_forward(const Gpu& gpu,
                                                    const Sm80ForwardConfig& config);

Status launch_sm80_forward(const Gpu& gpu, const LoadedSm80Forward& kernel,
                           const Problem& run_problem, const Arguments& arguments, Stream stream);

}  // namespace octavo
