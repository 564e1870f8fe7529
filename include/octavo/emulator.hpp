// The emulator: the GPU kernels' own source on the CPU, watched for hazards. `Device` "emulator"
// runs problems in it; what is here looks at the kernels themselves.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo {

// False where the library was built without it (it needs Boost.Context).
OCTAVO_API bool has_emulator();

// The order of everything that the instruction set leaves open, for runs from now on: without a
// seed warps run in turn and copies complete as late as a wait allows; with one, both follow the
// seed, and the same seed gives the same order.
OCTAVO_API void set_emulator_schedule(std::optional<std::uint64_t> seed);

// The kernels that the emulator can run.
struct EmulatedKernel {
  std::string kernel;  // "sm80_forward"
  std::string config;  // as `octavo kernels` spells it
  std::string brief;   // of it, what differs from the defaults
};
OCTAVO_API std::vector<EmulatedKernel> emulated_kernels();

}  // namespace octavo
