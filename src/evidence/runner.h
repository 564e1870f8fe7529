// How a case is run: by the library on a device, or by what a test puts in its place.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "octavo/octavo.hpp"

namespace octavo::evidence {

// One call, ready to be run again and again. Each time it takes out and lse as they stand in host
// memory, computes them, and leaves them there, with whatever else it overwrote.
using Call = std::function<Status()>;
// Makes a call of arguments in host memory, which must stay where they are.
using Runner = std::function<Result<Call>(const Arguments&, const Options&)>;

// What computes: a plan of the library, or what a test puts in its place.
struct Kernel {
  std::function<std::size_t(const Arguments&)> workspace_bytes;
  std::function<Status(const Arguments&, Workspace, Stream)> run;
};
using MakeKernel = std::function<Result<Kernel>(const Problem&, Device)>;
// plan() and Plan::run().
Result<Kernel> library_kernel(const Problem& problem, Device device);

// The same with a configuration forced. What that does not serve is unsupported, not wrong.
MakeKernel kernel_of_config(std::string config);
// attention(), with plans and workspaces of its own.
Result<Kernel> one_call_kernel(const Problem& problem, Device device);

// The stream that calls are given on a GPU, and the only one they wait for. The default stream
// waits for others; one of their own does not, so that work a kernel puts elsewhere is missed.
enum class OnStream : std::uint8_t { standard, own };

// Runs kernels on the device, in a workspace of exactly the bytes asked for, guarded.
Runner runner_of(Device device, MakeKernel make_kernel, OnStream stream);
Runner library_runner(Device device);

// A runner that has nothing to prepare.
Runner plain_runner(std::function<Status(const Arguments&, const Options&)> run);

}  // namespace octavo::evidence
