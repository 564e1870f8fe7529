// SPDX-License-Identifier: Apache-2.0
// The emulator's own test: for each kind of hazard, kernels with one thing missing, which must be
// reported, and correct twins, which must not be.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "device/ptx/tma.cuh"
#include "emulator/report.h"

namespace octavo::emulator {

// The memory of a selftest kernel.
struct SelftestMemory {
  const std::uint32_t* in = nullptr;  // kSelftestWords of each
  std::uint32_t* out = nullptr;
  // `in` and `out` as 32 rows of 64 FP16 values; boxes of 8 rows, 1024 bytes, 128-byte swizzle.
  ptx::TensorMap in_map{}, out_map{};
};
inline constexpr std::size_t kSelftestWords = 1024;
inline constexpr std::uint32_t kSelftestSmemBytes = 16384;

struct SelftestCase {
  Hazard hazard;     // what the emulator must report for the faulty kernel
  const char* what;  // description of the fault
  int threads;
  void (*kernel)(const SelftestMemory& memory, bool right);
  int cluster = 1;
  bool programmatic = false;
  int registers = 0;
  int faulty_arch = 90;  // the twin runs on sm_90
  int blocks = 0;        // of the grid; 0: one cluster
};
const std::vector<SelftestCase>& selftest_cases();
// The parts of the list: instructions of every chip, global memory, and Hopper's.
std::vector<SelftestCase> general_selftest_cases();
std::vector<SelftestCase> global_selftest_cases();
std::vector<SelftestCase> copy_selftest_cases();
std::vector<SelftestCase> warpgroup_selftest_cases();

Report run_selftest(const SelftestCase& test, bool right, std::optional<std::uint64_t> seed);

}  // namespace octavo::emulator
