// SPDX-License-Identifier: Apache-2.0
// Launches the teaching kernels of the ladder (device/ladder/). They are compiled at run time; none
// belongs to the shipped kernels, and no plan chooses them.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "config/ladder.h"
#include "device/ladder/problem.cuh"
#include "gpu/driver/context.h"
#include "gpu/jit/kernel_source.h"
#include "octavo/octavo.hpp"

namespace octavo {

// "scalar", "tiled", "tensor_cores", "async_copies", "specialised_warps": also the name of the
// kernel and of its file.
std::string_view name(Rung rung);

// Every kernel of the ladder: the rungs in order, each with head_dim 64 and then 128.
inline constexpr std::array<LadderConfig, 2 * kRungs> kLadder = [] {
  std::array<LadderConfig, 2 * kRungs> all{};
  for (int i = 0; i < 2 * kRungs; ++i)
    all[static_cast<std::size_t>(i)] = {static_cast<Rung>(i / 2), i % 2 == 0 ? 64 : 128};
  return all;
}();

// Rows, keys, threads and shared memory, as the kernel's source says.
LadderShape shape_of(const LadderConfig& config);

// "rung=tiled,head_dim=64"
std::string to_text(const LadderConfig& config);
std::string brief_text(const LadderConfig& config);

// The kernel for a GPU of this architecture.
KernelSource kernel_source(const LadderConfig& config, int gpu_arch);

// Whether a GPU of this architecture has the instructions of a rung: the last needs sm_90.
Status ladder_runs_on(Rung rung, int gpu_arch);

// Whether the ladder computes a problem; the error names what it does not.
Status ladder_serves(const Problem& problem);

// Enqueues the kernel. The arguments are contiguous, on the device, and of a problem that
// ladder_serves() accepts.
Status launch_ladder(const Gpu& gpu, const LadderConfig& config, cuda::Function function,
                     const Problem& problem, const Arguments& arguments, Stream stream);

}  // namespace octavo
