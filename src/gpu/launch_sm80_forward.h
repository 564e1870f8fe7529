// The sm80 forward kernel from the host's side: what it is told, and how it is launched.
#pragma once

#include <string>

#include "config/sm80_forward.h"
#include "device/core/params.cuh"
#include "gpu/context.h"
#include "octavo/octavo.hpp"

namespace octavo {

// Widest power of two, up to 16 bytes, that divides the address of every row of every tensor.
int row_alignment(const Arguments& arguments);

// `run_problem` is validated and served by the kernel; `config` fits it.
ForwardParams sm80_forward_params(const Problem& run_problem, const Arguments& arguments,
                                  const Sm80ForwardConfig& config);

// Tiles of the launch; 0 when there is nothing to do.
std::int64_t sm80_forward_tiles(const Problem& run_problem, const Sm80ForwardConfig& config);

// A kernel in a GPU's memory.
struct LoadedSm80Forward {
  Sm80ForwardConfig config;
  cuda::Function function = nullptr;
  int resident_blocks = 0;  // CTAs the GPU holds at once; for persistent kernels
  std::string note{};       // what was amiss: with the cache, or that it stands in for another
};
Result<LoadedSm80Forward> load_sm80_forward(const Gpu& gpu, const Sm80ForwardConfig& config);

// Where that kernel is neither at hand nor can be compiled, the nearest shipped one that serves the
// same problems.
Result<LoadedSm80Forward> load_nearest_sm80_forward(const Gpu& gpu,
                                                    const Sm80ForwardConfig& config);

Status launch_sm80_forward(const Gpu& gpu, const LoadedSm80Forward& kernel,
                           const Problem& run_problem, const Arguments& arguments, Stream stream);

}  // namespace octavo
