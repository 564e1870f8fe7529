// What `check` does differently on a GPU: cases the device serves, their kernels compiled side by
// side before the first of them runs, and an oracle there.
#pragma once

#include <string>
#include <vector>

#include "evidence/cases.h"
#include "evidence/check.h"

namespace octavo::evidence {

// The suite `all` of a GPU: 2,400 cases that it serves.
std::vector<Case> gpu_cases(Device device, std::uint64_t seed);

// The suite `configs`: every configuration of the Hopper kernel's table in both 16-bit types, and
// every way in which it divides keys, with heads packed as well as not, each over random problems
// of its head dimension. Divisions for which a chip has no room are refused and counted.
std::vector<Case> config_cases(std::uint64_t seed);

// The suite `emulated`: cases of `all` that the emulated Hopper serves, each with the configuration
// that it runs there.
inline constexpr Device kEmulatedHopper{Device::Kind::emulator, 90};
Result<std::vector<Case>> cases_of_emulator(std::uint64_t seed);

// Compiles on all cores what the cases will need and no cache has. How many kernels that are, of
// compiled ones and others. A failure is left to the case that needs the kernel.
std::int64_t compile_kernels(Device device, const std::vector<Case>& cases,
                             const Progress& progress);

// The device's, or the CPU's where that cannot run.
CheckOracle oracle_for(Device device);

}  // namespace octavo::evidence
