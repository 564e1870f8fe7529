// The machine that measurements belong to.
#pragma once

#include <string>

#include "octavo/octavo.hpp"

namespace octavo::evidence {

// The name of the GPU, or of the CPU model.
std::string machine_of(Device device);

}  // namespace octavo::evidence
