// SPDX-License-Identifier: Apache-2.0
// The sm80 forward kernel on the host: which problems it serves, the choice of its configuration,
// its parameters, loading and launch.
#pragma once

#include <string>

#include "config/sm80_forward.h"
#include "device/core/params.cuh"
#include "gpu/driver/context.h"
#include "gpu/driver/driver.h"
#include "gpu/forward/resolved.h"
#include "octavo/octavo.hpp"

namespace octavo {

constexpr bool is_fp8(Element e) { return e == Element::e4m3 || e == Element::e5m2; }

// The largest shared memory of a CTA: 163 KB on sm_80 and sm_87, 99 KB on sm_86, sm_89 and sm_12x,
// 227 KB on sm_90 and sm_10x. An unknown chip gets the smallest, 99 KB.
int max_smem_bytes(int arch);

// Checks whether a chip can run a configuration. A pure function, used by chooser, tuner and tests.
// `arch` and `smem_bytes` are the chip's; a configuration for an older chip runs on a newer one.
Status feasible(const Sm80ForwardConfig& config, int arch, int smem_bytes);
inline Status feasible(const Sm80ForwardConfig& config, int arch) {
  return feasible(config, arch, max_smem_bytes(arch));
}

// Checks that the sm80 family can read the kernel problem's V: VLayout::rows, in the type of Q and
// K. Only the Hopper kernel reads others.
Status sm80_forward_supports(const Resolved& resolved);

struct ChosenSm80Forward {
  Sm80ForwardConfig config;
  std::string reason;
};
// `load_bytes`: the row alignment of the forward kernel's tensors, in bytes.
ChosenSm80Forward choose_sm80_forward(const Resolved& resolved, const GpuInfo& gpu, int load_bytes);

// The largest power of two, up to 16, that divides the address of every row of every tensor.
int row_alignment(const Arguments& arguments);

// `kernel_problem` must be validated and supported by the kernel, and `config` must fit it. A
// kernel without a block mask, or without modifiers and padding, takes only a base class.
BlockMaskedForwardParams sm80_forward_params(const Problem& kernel_problem,
                                             const Arguments& arguments,
                                             const Sm80ForwardConfig& config);

// The number of work tiles; 0 if there is nothing to do.
std::int64_t sm80_forward_tiles(const Problem& kernel_problem, const Sm80ForwardConfig& config);

// A kernel that is loaded on a GPU.
struct LoadedSm80Forward {
  Sm80ForwardConfig config;
  cuda::Function function = nullptr;
  int ctas_per_sm = 0;  // that an SM holds at once; for persistent kernels
  std::string note{};   // a cache problem, or that the kernel replaces another
};
Result<LoadedSm80Forward> load_sm80_forward(const Gpu& gpu, const Sm80ForwardConfig& config);

// If that kernel is not available and cannot be compiled, loads the nearest shipped one that
// supports the same problems.
Result<LoadedSm80Forward> load_nearest_sm80_forward(const Gpu& gpu,
                                                    const Sm80ForwardConfig& config);

Status launch_sm80_forward(const Gpu& gpu, const LoadedSm80Forward& kernel,
                           const Problem& kernel_problem, const Arguments& arguments,
                           Stream stream);

}  // namespace octavo
