// How a case is run: by the library on a device, or by what a test puts in its place.
#pragma once

#include <functional>

#include "octavo/octavo.hpp"

namespace octavo::evidence {

// One call, ready to be run again and again. Each time it takes out and lse as they stand in host
// memory, computes them, and leaves them there, with whatever else it overwrote.
using Call = std::function<Status()>;
// Makes a call of arguments in host memory, which must stay where they are.
using Runner = std::function<Result<Call>(const Arguments&, const Options&)>;

// plan() and Plan::run() on the device, in a workspace of exactly the bytes asked for, guarded.
Runner library_runner(Device device);

// A runner that has nothing to prepare.
Runner plain_runner(std::function<Status(const Arguments&, const Options&)> run);

}  // namespace octavo::evidence
