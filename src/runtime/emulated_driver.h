// A CUDA driver whose GPU is the emulator. Host code of the GPU room encodes its tensor maps and
// launches its kernels through it, and so with the grid, the cluster and the shared memory that it
// would give a GPU.
#pragma once

#include <functional>
#include <string>

#include "emulator/machine.h"
#include "gpu/context.h"

namespace octavo {

using EmulatorThen = std::function<void(const emulator::Machine&)>;

// A kernel ready to be launched: what a function of this driver is.
struct EmulatedFunction {
  std::string name;  // for reports
  int arch = 0;
  std::function<void(const void*)> entry;  // what a thread runs, given the kernel's argument
  emulator::GlobalMemory memory{};
  emulator::Settings settings{};
  EmulatorThen then{};  // is handed the machine, with its findings, after a launch

  cuda::Function handle() { return reinterpret_cast<cuda::Function>(this); }
};

// Has what a launch needs, and nothing else: every other function is null.
const Driver& emulated_driver();

}  // namespace octavo
