// SPDX-License-Identifier: Apache-2.0
// Host code of the decode kernel: which problems it supports, the choice of its configuration, its
// parameters, loading and launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "config/decode.h"
#include "device/decode/params.cuh"
#include "gpu/driver/context.h"
#include "gpu/driver/driver.h"
#include "octavo/octavo.hpp"

namespace octavo {

// Whether the decode kernel computes the problem if all rows are 16-byte aligned: 16-bit Q over K
// and V of its dtype, or of an 8-bit one (FP8 from sm_89 on), which it converts itself.
bool decode_supports(const Problem& problem, const GpuInfo& gpu);

// Whether the decode kernel is the fastest kernel for the problem on this chip. It is for few query
// rows over many keys.
bool decode_is_best(const Problem& problem, const GpuInfo& gpu);

// Whether every row of the tensors is 16-byte aligned, and rows of K and V are less than 4 GB
// apart.
bool decode_can_address(const Arguments& arguments);

// Checks whether a chip can run a configuration.
Status feasible(const DecodeConfig& config, const GpuInfo& gpu);

struct ChosenDecode {
  DecodeConfig config;
  std::string reason;
};
ChosenDecode choose_decode(const Problem& problem, const GpuInfo& gpu);

// The loaded decode kernel, and the kernel that combines its partial results, unless clusters do.
struct LoadedDecode {
  DecodeConfig config;
  cuda::Function function = nullptr;
  cuda::Function combine = nullptr;
  int sms = 0;           // of the GPU
  int ctas_per_sm = 1;   // that an SM holds at once
  int clusters[4] = {};  // that run at once, of 2^i CTAs
  std::string note{};    // a cache problem
};
Result<LoadedDecode> load_decode(const Gpu& gpu, const DecodeConfig& config);

// The bytes of the partial results.
std::size_t decode_workspace_bytes(const LoadedDecode& kernel, const Problem& run_problem);

// `workspace` holds decode_workspace_bytes().
decode::Params decode_params(const LoadedDecode& kernel, const Problem& run_problem,
                             const Arguments& arguments, void* workspace);

Status launch_decode(const Gpu& gpu, const LoadedDecode& kernel, const Problem& run_problem,
                     const Arguments& arguments, Workspace workspace, Stream stream);

}  // namespace octavo
