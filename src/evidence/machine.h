// The machine that numbers are of.
#pragma once

#include <string>

#include "octavo/octavo.hpp"

namespace octavo::evidence {

// What a device says of itself: the name of the GPU, the kind of the CPU.
std::string machine_of(Device device);

}  // namespace octavo::evidence
