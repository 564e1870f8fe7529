// A CUDA driver whose GPU is the emulator. The host code of src/gpu encodes tensor maps and
// launches kernels through it with the same grid, cluster and shared memory as on a GPU.
#pragma once

#include <functional>
#include <string>

#include "emulator/machine.h"
#include "gpu/driver/context.h"

namespace octavo {

using EmulatorThen = std::function<void(const emulator::Machine&)>;

// A kernel ready to be launched: the CUfunction of this driver.
struct EmulatedFunction {
  std::string name;  // for reports
  int arch = 0;
  std::function<void(const void*)> entry;  // run by each thread with the kernel's parameters
  emulator::GlobalMemory memory{};
  emulator::Settings settings{};
  EmulatorThen then{};  // called after a launch with the machine and its findings

  cuda::Function handle() { return reinterpret_cast<cuda::Function>(this); }
};

// It implements only the functions that a launch needs; the others are null.
const Driver& emulated_driver();

}  // namespace octavo
