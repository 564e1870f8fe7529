// SPDX-License-Identifier: Apache-2.0
#include "gpu/driver/context.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "base/error.h"

namespace octavo {
namespace {

Result<Gpu> make_gpu(int index) {
  const Result<const Driver*> found = driver();
  if (!found.ok()) return found.status();
  const Result<std::vector<GpuInfo>> all = gpus(**found);
  if (!all.ok()) return all.status();
  for (const GpuInfo& info : *all) {
    if (info.index != index) continue;
    Gpu gpu{info, *found, nullptr};
    cuda::DeviceOrdinal ordinal = 0;
    OCTAVO_GPU_TRY(*gpu.driver, gpu.driver->device_get(&ordinal, index), "cuDeviceGet");
    OCTAVO_GPU_TRY(*gpu.driver, gpu.driver->primary_context_retain(&gpu.context, ordinal),
                   "cuDevicePrimaryCtxRetain");
    return gpu;
  }
  return unsupported(
      "device", fmt::format("cuda:{}", index),
      all->empty() ? "no GPU was found" : fmt::format("cuda:0 to cuda:{}", all->size() - 1));
}

struct OpenedGpus {
  std::mutex mutex;
  std::map<int, Result<Gpu>> by_index;
};

}  // namespace

Status usable(const Gpu& gpu) {
  return gpu.is_emulated() || gpu.forks == fork_count() ? Status() : lost_by_fork();
}

Result<const Gpu*> open_gpu(int index) {
  // A failure is cached too: it would fail again, and slowly.
  static constinit PerProcess<OpenedGpus> of_process;
  OpenedGpus& opened = of_process.get();
  const std::lock_guard lock(opened.mutex);
  auto entry = opened.by_index.find(index);
  if (entry == opened.by_index.end()) entry = opened.by_index.emplace(index, make_gpu(index)).first;
  if (!entry->second.ok()) return entry->second.status();
  return &*entry->second;
}

CurrentContext::CurrentContext(const Gpu& gpu) : gpu_(gpu) {
  status_ = usable(gpu);
  if (!status_.ok()) return;
  cuda::Context current = nullptr;
  const Driver& d = *gpu.driver;
  if (d.context_get_current(&current) == cuda::kSuccess && current == gpu.context) return;
  const cuda::Error error = d.context_push(gpu.context);
  pushed_ = error == cuda::kSuccess;
  if (!pushed_) status_ = d.status(error, "cuCtxPushCurrent");
}

CurrentContext::~CurrentContext() {
  cuda::Context previous = nullptr;
  if (pushed_) gpu_.driver->context_pop(&previous);
}

Result<std::shared_ptr<const OwnStream>> OwnStream::make(int device_index) {
  const Result<const Gpu*> gpu = open_gpu(device_index);
  if (!gpu.ok()) return gpu.status();
  const CurrentContext current(**gpu);
  OCTAVO_RETURN_IF_ERROR(current.status());
  const Driver& d = *(*gpu)->driver;
  cuda::StreamHandle handle = nullptr;
  OCTAVO_GPU_TRY(d, d.stream_create(&handle, cuda::kStreamNonBlocking), "cuStreamCreate");
  return std::make_shared<const OwnStream>(**gpu, handle);
}

OwnStream::~OwnStream() {
  const CurrentContext current(gpu_);
  if (current.status().ok()) (void)gpu_.driver->stream_destroy(handle_);
}

}  // namespace octavo
