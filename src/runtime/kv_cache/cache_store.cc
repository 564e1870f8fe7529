// SPDX-License-Identifier: Apache-2.0
#include "runtime/kv_cache/cache_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "cpu/kv_cache.h"
#include "gpu/cache/append.h"
#include "runtime/emulated/emulated_gpu.h"

namespace octavo {
namespace {

Tensor cache_tensor(const KvCacheOptions& o, std::int64_t pages, void* data) {
  const std::int64_t columns = o.dtype == DType::int4 ? o.head_dim / 2 : o.head_dim;
  return o.layout == PageLayout::bhsd
             ? Tensor::bhsd(data, o.dtype, pages, o.heads, o.page_size, columns)
             : Tensor::bshd(data, o.dtype, pages, o.heads, o.page_size, columns);
}

// Sets the pointers to the scales or groups of a cache, if its type has any.
void set_scales(CacheMemory& memory, const KvCacheOptions& o, void* k, void* v) {
  if (o.dtype == DType::int4) {
    const auto groups = [&o](void* data) -> Int4Groups {
      return {static_cast<std::uint16_t*>(data), o.heads, o.page_size, o.head_dim, o.group};
    };
    memory.k_groups = groups(k);
    memory.v_groups = groups(v);
  } else if (is_8bit(o.dtype)) {
    memory.k_scales = static_cast<float*>(k);
    memory.v_scales = static_cast<float*>(v);
  }
}

// The bytes of a page of K or V, which is contiguous in every layout, and of its scales or groups.
std::size_t page_bytes(const Tensor& t) {
  return static_cast<std::size_t>(t.shape[1] * t.shape[2] * t.shape[3]) * size_bytes(t.dtype);
}
std::size_t page_scale_bytes(const KvCacheOptions& o) {
  const auto rows = static_cast<std::size_t>(o.heads * o.page_size);
  if (o.dtype == DType::int4)
    return rows * 2 * static_cast<std::size_t>(o.head_dim / o.group) * sizeof(std::uint16_t);
  return is_8bit(o.dtype) ? rows * sizeof(float) : 0;
}

template <class T>
T* page_of(T* data, std::int64_t page, std::size_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(data) +
                              static_cast<std::size_t>(page) * bytes);
}

class HostStore final : public CacheStore {
 public:
  Result<bool> is_captured(Stream /*stream*/) const override { return false; }
  Status append(const ConstTensor& k, const ConstTensor& v, const Rotary& rotary,
                Stream /*stream*/) override {
    cpu::append_rows(memory(), batch(), k, v, rotary);
    return {};
  }

 protected:
  Status upload(void* to, const void* from, std::size_t bytes, Stream /*stream*/) const override {
    if (bytes > 0) std::memcpy(to, from, bytes);  // no bytes: `from` may be null
    return {};
  }
  Status fetch(void* to, const void* from, std::size_t bytes, Stream stream) const override {
    return upload(to, from, bytes, stream);
  }
  Status copy(void* to, const void* from, std::size_t bytes, Stream stream) const override {
    return upload(to, from, bytes, stream);
  }
  Status wait(Stream /*stream*/) const override { return {}; }
};

// On CUDA and on the emulator, whose device memory is the host's.
class GpuStore final : public CacheStore {
 public:
  explicit GpuStore(const Gpu& gpu) : gpu_(gpu), appends_(gpu) {}

  Result<bool> is_captured(Stream stream) const override {
    const CurrentContext current(gpu_);
    if (!current.status().ok()) return current.status();
    cuda::CaptureStatus status = cuda::CaptureStatus::none;
    const cuda::Error error = driver().stream_is_capturing(handle(stream), &status);
    if (error != cuda::kSuccess) return driver().status(error, "cuStreamIsCapturing");
    return status != cuda::CaptureStatus::none;
  }
  Status append(const ConstTensor& k, const ConstTensor& v, const Rotary& rotary,
                Stream stream) override {
    return appends_.launch({memory(), batch(), k, v, rotary}, stream);
  }

 protected:
  // The driver copies up to this many bytes of pageable memory before it returns, without waiting
  // for the stream.
  static constexpr std::size_t kMostAtOnce = 64 << 10;
  Status upload(void* to, const void* from, std::size_t bytes, Stream stream) const override {
    const CurrentContext current(gpu_);
    OCTAVO_RETURN_IF_ERROR(current.status());
    for (std::size_t done = 0; done < bytes; done += kMostAtOnce)
      OCTAVO_GPU_TRY(
          driver(),
          driver().memcpy_htod_async(address(to) + done, static_cast<const std::byte*>(from) + done,
                                     std::min(bytes - done, kMostAtOnce), handle(stream)),
          "cuMemcpyHtoDAsync");
    return {};
  }
  Status fetch(void* to, const void* from, std::size_t bytes, Stream stream) const override {
    const CurrentContext current(gpu_);
    OCTAVO_RETURN_IF_ERROR(current.status());
    OCTAVO_GPU_TRY(driver(), driver().memcpy_dtoh_async(to, address(from), bytes, handle(stream)),
                   "cuMemcpyDtoHAsync");
    return {};
  }
  Status copy(void* to, const void* from, std::size_t bytes, Stream stream) const override {
    const CurrentContext current(gpu_);
    OCTAVO_RETURN_IF_ERROR(current.status());
    OCTAVO_GPU_TRY(driver(),
                   driver().memcpy_dtod_async(address(to), address(from), bytes, handle(stream)),
                   "cuMemcpyDtoDAsync");
    return {};
  }
  Status wait(Stream stream) const override {
    const CurrentContext current(gpu_);
    OCTAVO_RETURN_IF_ERROR(current.status());
    OCTAVO_GPU_TRY(driver(), driver().stream_synchronize(handle(stream)), "cuStreamSynchronize");
    return {};
  }

 private:
  const Driver& driver() const { return *gpu_.driver; }
  static cuda::StreamHandle handle(Stream stream) {
    return static_cast<cuda::StreamHandle>(stream);
  }
  static cuda::DevicePointer address(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

  const Gpu& gpu_;
  LoadedAppends appends_;
};

}  // namespace

Result<std::unique_ptr<CacheStore>> CacheStore::make(const KvCacheOptions& options, Device device) {
  std::unique_ptr<CacheStore> made;
  if (device.kind == Device::Kind::cpu) {
    made = std::make_unique<HostStore>();
  } else {
    const Result<const Gpu*> gpu =
        device.kind == Device::Kind::cuda ? open_gpu(device.index) : emulated_gpu(device);
    if (!gpu.ok()) return gpu.status();
    OCTAVO_RETURN_IF_ERROR(check_gpu_cache(options, (*gpu)->info));
    made = std::make_unique<GpuStore>(**gpu);
  }
  OCTAVO_RETURN_IF_ERROR(made->allocate(options, device));
  return made;
}

Status CacheStore::allocate(const KvCacheOptions& o, Device device) {
  memory_ = {cache_tensor(o, o.pages, nullptr), cache_tensor(o, o.pages, nullptr)};
  page_scale_bytes_ = page_scale_bytes(o);
  const auto pages = static_cast<std::size_t>(o.pages);
  const auto batch = static_cast<std::size_t>(o.max_batch);
  const std::size_t cache_bytes = pages * page_bytes(memory_.k);
  const std::size_t scale_bytes = pages * page_scale_bytes_;
  const std::size_t table_words = batch * static_cast<std::size_t>(o.pages_per_sequence);
  const std::size_t counter_words = 2 * batch + 1;
  constexpr std::size_t kWord = sizeof(std::int32_t);
  for (const auto& [buffer, bytes] : {std::pair{&k_, cache_bytes},
                                      {&v_, cache_bytes},
                                      {&k_scales_, scale_bytes},
                                      {&v_scales_, scale_bytes},
                                      {&table_, table_words * kWord},
                                      {&counters_, counter_words * kWord}}) {
    Result<Buffer> made = Buffer::make(device, bytes);
    if (!made.ok()) return made.status();
    *buffer = *std::move(made);
  }
  memory_.k.data = k_.data();
  memory_.v.data = v_.data();
  set_scales(memory_, o, k_scales_.data(), v_scales_.data());
  auto* const words = static_cast<std::int32_t*>(counters_.data());
  batch_ = {static_cast<std::int32_t*>(table_.data()), o.pages_per_sequence, words, words + batch,
            reinterpret_cast<std::uint32_t*>(words + 2 * batch)};
  const std::vector<std::int32_t> zeros(std::max(table_words, counter_words), 0);
  OCTAVO_RETURN_IF_ERROR(upload(table_.data(), zeros.data(), table_words * kWord, nullptr));
  OCTAVO_RETURN_IF_ERROR(upload(words, zeros.data(), counter_words * kWord, nullptr));
  return wait(nullptr);
}

Status CacheStore::write_pages(std::size_t slot, std::int64_t first,
                               std::span<const std::int32_t> pages, Stream stream) const {
  std::int32_t* const row =
      batch_.page_table + static_cast<std::int64_t>(slot) * batch_.page_table_stride;
  return upload(row + first, pages.data(), pages.size_bytes(), stream);
}
Status CacheStore::write_lengths(std::span<const std::int32_t> lengths, Stream stream) const {
  return upload(batch_.lengths, lengths.data(), lengths.size_bytes(), stream);
}
Status CacheStore::write_capacities(std::span<const std::int32_t> capacities, Stream stream) const {
  return upload(batch_.capacities, capacities.data(), capacities.size_bytes(), stream);
}

Status CacheStore::copy_page(std::int32_t from, std::int32_t to, Stream stream) const {
  const std::size_t bytes = page_bytes(memory_.k), scale_bytes = page_scale_bytes_;
  for (void* const data : {memory_.k.data, memory_.v.data})
    OCTAVO_RETURN_IF_ERROR(
        copy(page_of(data, to, bytes), page_of(data, from, bytes), bytes, stream));
  if (scale_bytes == 0) return {};
  for (void* const data : {k_scales_.data(), v_scales_.data()})
    OCTAVO_RETURN_IF_ERROR(copy(page_of(data, to, scale_bytes), page_of(data, from, scale_bytes),
                                scale_bytes, stream));
  return {};
}

Status CacheStore::download(const KvCacheOptions& options, std::span<const std::int32_t> pages,
                            HostPages& to, Stream stream) const {
  const std::size_t bytes = page_bytes(memory_.k), scale_bytes = page_scale_bytes_;
  to.memory = memory_;
  to.memory.k.shape[0] = to.memory.v.shape[0] = static_cast<std::int64_t>(pages.size());
  to.k.resize(pages.size() * bytes);
  to.v.resize(pages.size() * bytes);
  to.k_scales.resize(pages.size() * scale_bytes);
  to.v_scales.resize(to.k_scales.size());
  to.memory.k.data = to.k.data();
  to.memory.v.data = to.v.data();
  set_scales(to.memory, options, to.k_scales.data(), to.v_scales.data());
  const auto fetch_pages = [&](void* copies, const void* from, std::size_t size) -> Status {
    if (size == 0) return {};
    for (std::size_t i = 0; i < pages.size(); ++i)
      OCTAVO_RETURN_IF_ERROR(fetch(page_of(copies, static_cast<std::int64_t>(i), size),
                                   page_of(from, pages[i], size), size, stream));
    return {};
  };
  OCTAVO_RETURN_IF_ERROR(fetch_pages(to.memory.k.data, memory_.k.data, bytes));
  OCTAVO_RETURN_IF_ERROR(fetch_pages(to.memory.v.data, memory_.v.data, bytes));
  OCTAVO_RETURN_IF_ERROR(fetch_pages(to.k_scales.data(), k_scales_.data(), scale_bytes));
  OCTAVO_RETURN_IF_ERROR(fetch_pages(to.v_scales.data(), v_scales_.data(), scale_bytes));
  return wait(stream);
}

}  // namespace octavo
