// Plans that run on a GPU.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "gpu/kernel_source.h"
#include "runtime/backend.h"

namespace octavo {

// `config`, if not empty, is the text of the configuration to run, whatever would be chosen; fields
// it leaves out that follow from the problem and the chip are theirs, others have their defaults.
Result<std::shared_ptr<const Plan::Impl>> make_gpu_plan(const Problem& problem, Device device,
                                                        std::string_view config = {});

// Launches, again and again, what a run of these arguments launches, with the same bytes: what that
// costs without the library. Nothing: the run is not one launch of a Hopper kernel. The context of
// the GPU must be current.
Result<std::function<Status()>> bare_launch(const Plan::Impl& plan, const Arguments& arguments,
                                            Stream stream);

// The kernels that a plan for the problem and a run with rows aligned to so many bytes load: who
// knows all problems to come can compile theirs side by side first.
Result<std::vector<KernelSource>> gpu_kernels(const Problem& problem, Device device,
                                              int row_alignment);

}  // namespace octavo
