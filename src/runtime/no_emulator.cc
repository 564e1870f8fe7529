// In place of the emulator, where the library is built without it.
#include "attention/error.h"
#include "octavo/emulator.hpp"
#include "runtime/emulator_plan.h"

namespace octavo {

Result<std::shared_ptr<const Plan::Impl>> make_emulator_plan(const Problem& /*problem*/,
                                                             Device /*device*/) {
  return unsupported("device", "emulator (this library was built without it)", "cpu, cuda");
}

std::string describe_emulator() { return ""; }

bool has_emulator() { return false; }

void set_emulator_schedule(std::optional<std::uint64_t> /*seed*/) {}

std::vector<EmulatedKernel> emulated_kernels() { return {}; }

}  // namespace octavo
