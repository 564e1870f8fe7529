// SPDX-License-Identifier: Apache-2.0
// The kernels that are compiled when the library is built.
#pragma once

#include <optional>
#include <vector>

#include "config/sm80_forward.h"
#include "config/sm90_forward.h"
#include "gpu/jit/kernel_source.h"

namespace octavo {

// The architectures that get cubins, and those that also get PTX, which later chips compile.
inline constexpr int kShippedArchs[] = {80, 89, 90};
inline constexpr int kShippedPtxArchs[] = {80, 89};

// The shipped sm80 configurations that are feasible on an architecture.
std::vector<Sm80ForwardConfig> shipped_configs(int arch);

// Those of the Hopper kernel.
std::vector<Sm90ForwardConfig> shipped_sm90_configs();

// All of the above as sources to compile.
std::vector<KernelSource> shipped_kernels();

// The shipped configuration to use if `wanted` cannot be compiled: the nearest one that computes
// the same problems on a chip of that arch and shared memory. It has the same types and scales, a
// head_dim that is at least as large, and load_bytes that are at most as large. Empty if there is
// none.
std::optional<Sm80ForwardConfig> nearest_shipped(const Sm80ForwardConfig& wanted, int chip_arch,
                                                 int smem_bytes);

}  // namespace octavo
