// SPDX-License-Identifier: Apache-2.0
// A CUDA driver whose GPU is the emulator. The host code of src/gpu encodes tensor maps and
// launches kernels through it with the same grid, cluster and shared memory as on a GPU.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "emulator/machine.h"
#include "gpu/driver/driver.h"

namespace octavo {

// A kernel that can be launched: the CUfunction of this driver.
struct EmulatedFunction {
  std::string name;  // for reports
  int arch = 0;
  std::function<void(const void*)> entry;  // run by each thread with the kernel's parameters
  // The kernel waits for earlier grids itself. It is always launched early, whatever its launch
  // says, so that the emulator finds reads that do not wait.
  bool waits_for_grids = false;
  // The memory that it may access, unless set_emulated_memory() declares it.
  std::optional<emulator::GlobalMemory> memory{};
  int registers = 0;  // of a thread at launch; 0: as many as the register file allows

  cuda::Function handle() { return reinterpret_cast<cuda::Function>(this); }
};

// The driver. It implements only the functions that a launch needs; the others are null. A launch
// whose kernel has hazards fails, and its error text is the report of the hazards.
const Driver& emulated_driver();

// The memory that this thread's next launch may access.
void set_emulated_memory(emulator::GlobalMemory memory);

// While such an object exists, launches of this thread run with its settings instead of those of
// set_emulator_schedule(). After each launch `then` is called with the machine and its findings,
// and findings do not fail the launch.
using EmulatorThen = std::function<void(const emulator::Machine&)>;
class ExaminedLaunches {
 public:
  ExaminedLaunches(const emulator::Settings& settings, const EmulatorThen& then);
  ~ExaminedLaunches();
  ExaminedLaunches(const ExaminedLaunches&) = delete;
  ExaminedLaunches& operator=(const ExaminedLaunches&) = delete;

  const emulator::Settings& settings() const { return settings_; }
  void examine(const emulator::Machine& machine) const { then_(machine); }

 private:
  const emulator::Settings& settings_;
  const EmulatorThen& then_;
  const ExaminedLaunches* const outer_;
};

}  // namespace octavo
