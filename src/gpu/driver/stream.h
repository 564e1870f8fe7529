// A non-blocking CUDA stream.
#pragma once

#include <memory>

#include "gpu/driver/context.h"

namespace octavo {

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
