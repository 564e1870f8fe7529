// SPDX-License-Identifier: Apache-2.0
// Names the machine on which measurements were made.
#pragma once

#include <string>

#include "octavo/octavo.hpp"

namespace octavo::evidence {

// The name of the GPU, or of the CPU model.
std::string machine_of(Device device);

}  // namespace octavo::evidence
