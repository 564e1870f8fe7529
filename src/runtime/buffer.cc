// SPDX-License-Identifier: Apache-2.0
#include "runtime/buffer.h"

#include <cstdint>
#include <cstring>
#include <new>

#include "base/error.h"
#include "gpu/driver/context.h"

namespace octavo {
namespace {

class HostBuffer final : public Buffer::Impl {
 public:
  explicit HostBuffer(std::size_t size) {
    data = ::operator new (size, std::align_val_t{kBufferAlignment}, std::nothrow);
    bytes = data == nullptr ? 0 : size;
  }
  ~HostBuffer() override { ::operator delete (data, std::align_val_t{kBufferAlignment}); }

  Status upload(const void* from, std::size_t count, std::size_t offset) const override {
    std::memcpy(static_cast<std::byte*>(data) + offset, from, count);
    return {};
  }
  Status download(void* to, std::size_t count, std::size_t offset, Stream) const override {
    std::memcpy(to, static_cast<const std::byte*>(data) + offset, count);
    return {};
  }
};

class GpuBuffer final : public Buffer::Impl {
 public:
  explicit GpuBuffer(const Gpu& gpu) : gpu_(gpu) {}
  ~GpuBuffer() override {
    const CurrentContext current(gpu_);
    if (data != nullptr && current.status().ok()) (void)gpu_.driver->mem_free(address());
  }

  Status allocate(std::size_t size) {
    const CurrentContext current(gpu_);
    OCTAVO_RETURN_IF_ERROR(current.status());
    cuda::DevicePointer pointer = 0;
    const cuda::Error error = gpu_.driver->mem_alloc(&pointer, size);
    if (error == cuda::kOutOfMemory)
      return {ErrorCode::out_of_memory,
              fmt::format("{} bytes could not be allocated on cuda:{}.", size, gpu_.info.index)};
    OCTAVO_GPU_TRY(*gpu_.driver, error, "cuMemAlloc");
    data = reinterpret_cast<void*>(static_cast<std::uintptr_t>(pointer));
    bytes = size;
    return {};
  }
  Status upload(const void* from, std::size_t count, std::size_t offset) const override {
    const CurrentContext current(gpu_);
    OCTAVO_RETURN_IF_ERROR(current.status());
    OCTAVO_GPU_TRY(*gpu_.driver, gpu_.driver->memcpy_htod(address() + offset, from, count),
                   "cuMemcpyHtoD");
    return {};
  }
  Status download(void* to, std::size_t count, std::size_t offset, Stream stream) const override {
    const CurrentContext current(gpu_);
    OCTAVO_RETURN_IF_ERROR(current.status());
    if (stream != nullptr) return download_on(stream, to, count, offset);
    OCTAVO_GPU_TRY(*gpu_.driver, gpu_.driver->memcpy_dtoh(to, address() + offset, count),
                   "cuMemcpyDtoH");
    return {};
  }

 private:
  // cuMemcpyDtoH would wait for the default stream, and so for all blocking streams.
  Status download_on(Stream stream, void* to, std::size_t count, std::size_t offset) const {
    const Driver& d = *gpu_.driver;
    auto* const handle = static_cast<cuda::StreamHandle>(stream);
    OCTAVO_GPU_TRY(d, d.memcpy_dtoh_async(to, address() + offset, count, handle),
                   "cuMemcpyDtoHAsync");
    OCTAVO_GPU_TRY(d, d.stream_synchronize(handle), "cuStreamSynchronize");
    return {};
  }
  cuda::DevicePointer address() const { return reinterpret_cast<std::uintptr_t>(data); }
  const Gpu& gpu_;
};

Status check_span(const char* what, std::size_t count, std::size_t offset, std::size_t size) {
  if (offset <= size && count <= size - offset) return {};
  return invalid(what, fmt::format("{} bytes at offset {}", count, offset),
                 fmt::format("spans inside the {} bytes of the buffer", size));
}

}  // namespace

Result<Buffer> Buffer::make(Device device, std::size_t bytes) {
  return without_exceptions([&]() -> Result<Buffer> {
    if (bytes == 0) return Buffer();
    if (device.kind == Device::Kind::cuda) {
      const Result<const Gpu*> gpu = open_gpu(device.index);
      if (!gpu.ok()) return gpu.status();
      auto memory = std::make_shared<GpuBuffer>(**gpu);
      OCTAVO_RETURN_IF_ERROR(memory->allocate(bytes));
      return Buffer(std::move(memory));
    }
    auto memory = std::make_shared<HostBuffer>(bytes);
    if (memory->data == nullptr)
      return Status(ErrorCode::out_of_memory,
                    fmt::format("{} bytes could not be allocated.", bytes));
    return Buffer(std::move(memory));
  });
}

void* Buffer::data() const { return impl_ ? impl_->data : nullptr; }
std::size_t Buffer::bytes() const { return impl_ ? impl_->bytes : 0; }

Status Buffer::upload(const void* from, std::size_t bytes, std::size_t offset) const {
  return without_exceptions([&]() -> Status {
    OCTAVO_RETURN_IF_ERROR(check_span("upload", bytes, offset, this->bytes()));
    return bytes == 0 ? Status() : impl_->upload(from, bytes, offset);
  });
}

Status Buffer::download(void* to, std::size_t bytes, std::size_t offset, Stream stream) const {
  return without_exceptions([&]() -> Status {
    OCTAVO_RETURN_IF_ERROR(check_span("download", bytes, offset, this->bytes()));
    return bytes == 0 ? Status() : impl_->download(to, bytes, offset, stream);
  });
}

Status synchronize(Device device, Stream stream) {
  return without_exceptions([&]() -> Status {
    if (device.kind != Device::Kind::cuda) return {};
    const Result<const Gpu*> gpu = open_gpu(device.index);
    if (!gpu.ok()) return gpu.status();
    const CurrentContext current(**gpu);
    OCTAVO_RETURN_IF_ERROR(current.status());
    const Driver& d = *(*gpu)->driver;
    OCTAVO_GPU_TRY(d, d.stream_synchronize(static_cast<cuda::StreamHandle>(stream)),
                   "cuStreamSynchronize");
    return {};
  });
}

}  // namespace octavo
