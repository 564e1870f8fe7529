// SPDX-License-Identifier: Apache-2.0
// Parameters and launch of the fp64 oracle kernel.
#pragma once

#include <cstdint>
#include <optional>

#include "device/oracle/params.cuh"
#include "gpu/driver/context.h"
#include "gpu/jit/kernel_source.h"
#include "octavo/octavo.hpp"

namespace octavo {

struct OracleOutputs {
  double* out = nullptr;  // on the device, filled with 0
  double* lse = nullptr;  // filled with -infinity
  double* scores = nullptr;
  std::int64_t warps = 0;  // rows of `scores`, and warps of the grid
};

// The number of warps of a launch for this many rows: enough to fill any GPU, with scores of at
// most a few hundred megabytes.
std::int64_t oracle_warps(std::int64_t rows, std::int64_t seqlen_kv);

// P and O are rounded to `rounding`. `rows`, on the device: the rows of each sequence to compute.
oracle::Params oracle_params(const Problem& run_problem, const Arguments& on_device,
                             std::optional<DType> rounding, const std::int32_t* rows,
                             std::int64_t row_count, const OracleOutputs& outputs);

KernelSource oracle_source(int arch);
Status launch_oracle(const Gpu& gpu, const oracle::Params& params);

}  // namespace octavo
