// SPDX-License-Identifier: Apache-2.0
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

// Plans on the device that `name` selects. "auto" falls back to the CPU if there is no driver or
// GPU, or no GPU kernel for the problem. An invalid problem is still an error. Throws Exit.
Placed place(const Problem& problem, Device device, const std::string& name);

// Plans on the CPU after a failure that "auto" may ignore. Throws other failures.
Placed place_after(const Status& failure, const Problem& problem, Device device,
                   const std::string& name);

}  // namespace octavo::cli
