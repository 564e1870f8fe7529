// SPDX-License-Identifier: Apache-2.0
// Runs a case: with the library on a device, or with a test's substitute.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "octavo/octavo.hpp"

namespace octavo::evidence {

// One prepared call. Each run takes `out` and `lse` from host memory, computes them, and writes
// them back, together with everything else that it overwrote.
using Call = std::function<Status()>;
// Prepares a call with arguments in host memory, which must stay in place.
using Runner = std::function<Result<Call>(const Arguments&, const Options&)>;

// The implementation: a plan of the library, or a test's substitute.
struct Kernel {
  std::function<std::size_t(const Arguments&)> workspace_bytes;
  std::function<Status(const Arguments&, Workspace, Stream)> run;
};
using MakeKernel = std::function<Result<Kernel>(const Problem&, Device)>;
// Uses plan() and Plan::run().
Result<Kernel> library_kernel(const Problem& problem, Device device);

// The same with a forced configuration. A case that the configuration does not support counts as
// unsupported, not as wrong.
MakeKernel kernel_of_config(std::string config);
// Uses attention(), which has its own plans and workspaces.
Result<Kernel> one_call_kernel(const Problem& problem, Device device);

// The stream of calls on a GPU, the only stream that is waited for. The default stream waits for
// other streams. A separate stream does not, which reveals kernels that put work on another stream.
enum class OnStream : std::uint8_t { standard, own };

// Runs kernels on the device, in a guarded workspace of exactly the requested size.
Runner runner_of(Device device, MakeKernel make_kernel, OnStream stream);
Runner library_runner(Device device);

// A runner without preparation.
Runner plain_runner(std::function<Status(const Arguments&, const Options&)> run);

}  // namespace octavo::evidence
