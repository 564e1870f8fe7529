// SPDX-License-Identifier: Apache-2.0
// The primary context of a GPU, which is retained once and made current for the calls that need it,
// and streams in it.
#pragma once

#include <memory>

#include "gpu/driver/driver.h"
#include "numeric/fork_safe.h"
#include "octavo/octavo.hpp"

namespace octavo {

class KernelSet;  // gpu/jit/load_function.h

// A GPU and its context. Lives as long as the process.
struct Gpu {
  GpuInfo info;
  const Driver* driver = nullptr;
  cuda::Context context = nullptr;
  unsigned forks = fork_count();  // of the process that opened it
  // The emulator's fixed set of kernels; null for CUDA, which can load any.
  const KernelSet* kernels = nullptr;

  bool is_emulated() const { return kernels != nullptr; }
};

// Fails if the parent of this process opened the GPU before fork(). Emulated GPUs are always
// usable.
Status usable(const Gpu& gpu);

// The GPU with this index, opened on first use.
Result<const Gpu*> open_gpu(int index);

// Makes a GPU's context current and restores the thread's previous one.
class CurrentContext {
 public:
  explicit CurrentContext(const Gpu& gpu);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  const Status& status() const { return status_; }

 private:
  const Gpu& gpu_;
  bool pushed_ = false;
  Status status_;
};

// A non-blocking CUDA stream.
class OwnStream {
 public:
  static Result<std::shared_ptr<const OwnStream>> make(int device_index);
  OwnStream(const Gpu& gpu, cuda::StreamHandle handle) : gpu_(gpu), handle_(handle) {}
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  ~OwnStream();

  Stream handle() const { return handle_; }

 private:
  const Gpu& gpu_;
  cuda::StreamHandle handle_;
};

}  // namespace octavo
