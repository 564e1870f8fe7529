// SPDX-License-Identifier: Apache-2.0
// Plans that run on a GPU, or on the emulated one: one plan, two drivers.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "gpu/driver/driver.h"
#include "gpu/jit/kernel_source.h"
#include "runtime/plan/backend.h"

namespace octavo {

// `config`, if not empty, is the text of the configuration to run instead of the chosen one. Fields
// that the text omits are derived from the problem and the chip, or keep their defaults.
Result<std::shared_ptr<const Plan::Impl>> make_gpu_plan(const Problem& problem, Device device,
                                                        std::string_view config = {});

// A function that repeats the driver launch of a run with these arguments and the same parameter
// bytes, to measure its cost without the library. It is empty unless the run is a single launch of
// a Hopper kernel. The GPU's context must be current.
Result<std::function<Status()>> bare_launch(const Plan::Impl& plan, const Arguments& arguments,
                                            Stream stream);

// The kernels that a plan for the problem loads if rows are aligned to `row_alignment` bytes. A
// caller that knows its problems in advance can compile their kernels in parallel.
Result<std::vector<KernelSource>> gpu_kernels(const Problem& problem, Device device,
                                              int row_alignment);

// What a plan on such a GPU would say, without the GPU: nothing is loaded. `problem` must be
// validated and name its precision.
Result<Explanation> explain_without_gpu(const Problem& problem, const GpuInfo& info);

}  // namespace octavo
