// Chooses the device for a problem: --device, with the fallback of "auto".
#pragma once

#include <string>

#include "octavo/octavo.hpp"

namespace octavo::cli {

struct Placed {
  Plan plan;
  Device device;
  std::string note;  // why "auto" chose the CPU and not a GPU
  Explanation explain() const;
};

// A plan on the device that `name` selects. With "auto" the CPU is used if the GPU has no kernel
// for the problem, or if there is no driver or GPU; an invalid problem is still an error. Throws
// Exit.
Placed place(const Problem& problem, Device device, const std::string& name);

// The same on the CPU after a failure that "auto" may ignore; other failures are thrown.
Placed place_after(const Status& failure, const Problem& problem, Device device,
                   const std::string& name);

}  // namespace octavo::cli
