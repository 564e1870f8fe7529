// Runs a case: with the library on a device, or with a test's substitute.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "octavo/octavo.hpp"

namespace octavo::evidence {

// One prepared call. Each time it takes out and lse from host memory, computes them, and writes
// them back, together with everything else it overwrote.
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

// The same with a forced configuration. A case that it does not serve is unsupported, not wrong.
MakeKernel kernel_of_config(std::string config);
// Uses attention(), which has its own plans and workspaces.
Result<Kernel> one_call_kernel(const Problem& problem, Device device);

// The stream of calls on a GPU, and the only one that is waited for. The default stream waits for
// others; a separate one does not, so that work which a kernel puts elsewhere is detected.
enum class OnStream : std::uint8_t { standard, own };

// Runs kernels on the device, in a guarded workspace of exactly the requested size.
Runner runner_of(Device device, MakeKernel make_kernel, OnStream stream);
Runner library_runner(Device device);

// A runner without preparation.
Runner plain_runner(std::function<Status(const Arguments&, const Options&)> run);

}  // namespace octavo::evidence
