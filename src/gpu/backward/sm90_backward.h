// SPDX-License-Identifier: Apache-2.0
// The Hopper backward pass on the host: which problems it serves, its configuration, parameters,
// loading and launches.
//
// Three launches on one stream, four if gradients of sinks are wanted: row_stats writes delta and
// lse_log2 into the workspace, sm90_backward computes dK, dV and FP32 sums of dQ, and
// sm90_finish_dq stores dQ.
#pragma once

#include <cstddef>
#include <string>

#include "config/row_stats.h"
#include "config/sm90_backward.h"
#include "device/sm90/backward/params.cuh"
#include "gpu/backward/sm80_backward.h"
#include "gpu/driver/context.h"
#include "gpu/driver/driver.h"
#include "octavo/octavo.hpp"

namespace octavo {

// Whether the Hopper kernels support a problem that the sm80 family supports, provided that TMA can
// address its tensors. They do not support bias and mask tensors.
bool sm90_backward_serves(const Problem& problem, const GpuInfo& gpu);
// Whether TMA can address every tensor. False if any tensor is empty.
bool sm90_backward_reaches(const BackwardArguments& arguments);

struct ChosenSm90Backward {
  RowStatsConfig row_stats;
  Sm90BackwardConfig config;
  int dq_sums = 1;  // partial sums of dQ
  std::string reason;
};
// `sms`: of the GPU. With few keys the tiles are smaller, so that more SMs have one.
ChosenSm90Backward choose_sm90_backward(const Problem& problem, int sms);

// The parts of the workspace, as bytes from its start.
struct Sm90BackwardWorkspace {
  std::size_t turn_bytes = 0;
  std::size_t turns = 0;   // behind the row statistics: a counter for each slice of a tile of dQ
  std::size_t dq_sum = 0;  // FP32, a tile for each partial sum, head and block of queries
  std::size_t total = 0;
  std::int64_t tiles = 0;  // of one head and partial sum
};
// `tokens_q`: rows of q in a varlen batch.
Sm90BackwardWorkspace sm90_backward_workspace(const Problem& run_problem, std::int64_t tokens_q,
                                              const ChosenSm90Backward& chosen);

// All parameters except the tensor maps. A kernel without modifiers reads only the
// Sm90BackwardParams of these.
ModifiedSm90BackwardParams sm90_backward_params(const Problem& run_problem,
                                                const BackwardArguments& arguments,
                                                const ChosenSm90Backward& chosen,
                                                const GpuInfo& gpu, void* workspace);

struct LoadedSm90Backward {
  ChosenSm90Backward config;
  LoadedBackward shared;
  BackwardKernel backward;
  BackwardKernel finish_dq;
};
Result<LoadedSm90Backward> load_sm90_backward(const Gpu& gpu, const Problem& problem,
                                              const ChosenSm90Backward& chosen);

// `run_problem` must be validated and supported by the kernels, and TMA must reach the tensors.
Status launch_sm90_backward(const Gpu& gpu, const LoadedSm90Backward& kernels,
                            const Problem& run_problem, const BackwardArguments& arguments,
                            void* workspace, Stream stream);

}  // namespace octavo
