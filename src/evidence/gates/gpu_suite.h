// SPDX-License-Identifier: Apache-2.0
// What `check` does only on a GPU: it chooses cases that the device serves, compiles their kernels
// in parallel before the first case, and runs the oracle on the GPU.
#pragma once

#include <string>
#include <vector>

#include "evidence/cases/cases.h"
#include "evidence/gates/check.h"

namespace octavo::evidence {

// The suite `all` on a GPU: 2,400 cases that it serves.
std::vector<Case> gpu_cases(Device device, std::uint64_t seed);

// The suite `all` on an emulated GPU: small random cases that it serves.
inline constexpr std::int64_t kEmulatorCases = 1000;
std::vector<Case> emulator_cases(Device device, std::uint64_t seed,
                                 std::int64_t count = kEmulatorCases);

// Filters `cases`: keeps those that a GPU serves, as long as they need at most `most_kernels`
// kernels.
std::vector<Case> gpu_only_served(Device device, const std::vector<Case>& cases,
                                  std::size_t most_kernels);

// The suite `configs`: every configuration of the Hopper kernel's table in both 16-bit types, and
// every way in which it divides keys, with and without pack_gqa, each over random problems of its
// head dimension. Divisions that do not fit a chip are refused and counted.
std::vector<Case> config_cases(std::uint64_t seed);

// The suite `emulated`: cases of `all` that the emulated Hopper serves, each with the configuration
// that it uses there.
inline constexpr Device kEmulatedHopper{Device::Kind::emulator, 90};
Result<std::vector<Case>> cases_of_emulator(std::uint64_t seed);

// Compiles on all cores the kernels that the cases need and no cache has. Returns the number of
// kernels. A failure is left to the case that needs the kernel.
std::int64_t compile_kernels(Device device, const std::vector<Case>& cases,
                             const Progress& progress);

// The device's oracle, or the CPU's if that cannot run.
CheckOracle oracle_for(Device device);

}  // namespace octavo::evidence
