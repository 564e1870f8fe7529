// Which kernels are compiled when the library is built.
#pragma once

#include <vector>

#include "config/sm80_forward.h"
#include "config/sm90_forward.h"
#include "gpu/kernel_source.h"

namespace octavo {

// Chips that get cubins, and the oldest ones whose PTX later chips can compile.
inline constexpr int kShippedArchs[] = {80, 89, 90};
inline constexpr int kShippedPtxArchs[] = {80, 89};

// Configurations, each for every arch on which it is feasible.
std::vector<Sm80ForwardConfig> shipped_configs(int arch);

// Those of the Hopper kernel.
std::vector<Sm90ForwardConfig> shipped_sm90_configs();

// All of the above, as what the compiler is given.
std::vector<KernelSource> shipped_kernels();

}  // namespace octavo
