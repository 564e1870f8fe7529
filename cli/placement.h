// Where a problem is computed: --device, and what "auto" makes of it.
#pragma once

#include <string>

#include "octavo/octavo.hpp"

namespace octavo::cli {

struct Placed {
  Plan plan;
  Device device;
  std::string note;  // "auto" that came to the CPU: why not a GPU
  Explanation explain() const;
};

// A plan on the device, which `name` named. With "auto" the CPU serves what the GPU cannot, be it
// for want of a kernel, of a driver or of a GPU; what is wrong with the problem is said all the
// same. Throws Exit.
Placed place(const Problem& problem, Device device, const std::string& name);

// The same on the CPU, after a failure elsewhere that "auto" may pass over; others are thrown.
Placed place_after(const Status& failure, const Problem& problem, Device device,
                   const std::string& name);

}  // namespace octavo::cli
