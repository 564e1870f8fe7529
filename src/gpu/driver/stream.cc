#include "gpu/driver/stream.h"

#include "attention/error.h"

namespace octavo {

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
