// SPDX-License-Identifier: Apache-2.0
// A fake CUDA driver: enough of libcuda to test Octavo with a driver that is old, new, short of
// memory or incomplete. Memory is the host's; kernels are loaded and never run.
//
//   FAKE_CUDA_ARCH         compute capability, 89 unless given
//   FAKE_CUDA_SMS          its SMs, 8 unless given
//   FAKE_CUDA_L2           bytes of its L2, 1 MiB unless given
//   FAKE_CUDA_MEMORY       bytes that can be allocated; no limit unless given
//   FAKE_CUDA_INIT         the result of cuInit
//   FAKE_CUDA_NO_CUBINS    the result of cuModuleLoadDataEx for a cubin
//   FAKE_CUDA_NO_FUNCTION  the result of cuModuleGetFunction
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace {

constexpr int kOutOfMemory = 2;
constexpr int kNotFound = 500;

std::int64_t number(const char* variable, std::int64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}
int arch() { return static_cast<int>(number("FAKE_CUDA_ARCH", 89)); }

std::mutex mutex;
std::map<std::uint64_t, std::size_t>& allocations() {
  static auto& all = *new std::map<std::uint64_t, std::size_t>();
  return all;
}
std::size_t live_bytes() {
  std::size_t sum = 0;
  for (const auto& [address, bytes] : allocations()) sum += bytes;
  return sum;
}

std::atomic<int> live_modules{0};
std::atomic<int> encoded_maps{0};
std::atomic<int> launches{0}, early_launches{0}, last_grid{0};

// The first members of CUlaunchConfig, and of a CUlaunchAttribute.
struct LaunchConfig {
  unsigned grid[3], block[3], smem_bytes;
  void* stream;
  const struct LaunchAttribute* attributes;
  unsigned attribute_count;
};
struct LaunchAttribute {
  int id, reserved;
  alignas(8) char value[64];
};
constexpr int kProgrammaticStreamSerialization = 6;

template <class Handle>
int give(Handle* handle) {
  static char object;
  *handle = &object;
  return 0;
}

}  // namespace

extern "C" {
#pragma GCC visibility push(default)

// Queries for tests.
std::size_t fake_cuda_live_bytes() {
  const std::lock_guard lock(mutex);
  return live_bytes();
}

int fake_cuda_live_modules() { return live_modules; }
int fake_cuda_encoded_maps() { return encoded_maps; }
int fake_cuda_launches() { return launches; }
int fake_cuda_early_launches() { return early_launches; }
int fake_cuda_last_grid() { return last_grid; }

int cuInit(unsigned) { return static_cast<int>(number("FAKE_CUDA_INIT", 0)); }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuGetErrorName(int error, const char** text) {
  *text = error == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
  return 0;
}
int cuGetErrorString(int error, const char** text) {
  *text = error == kOutOfMemory ? "out of memory" : "an error";
  return 0;
}

// NVIDIA's compiler calls this on any driver it finds.
int cuGetExportTable(const void**, const void*) { return kNotFound; }

int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int index) { return *device = index, 0; }
int cuDeviceGetName(char* name, int size, int) {
  std::strncpy(name, "Fake GPU", static_cast<std::size_t>(size));
  return 0;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) { return *bytes = std::size_t{8} << 30, 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 75:
      return *value = arch() / 10, 0;
    case 76:
      return *value = arch() % 10, 0;
    case 16:  // SMs
      return *value = static_cast<int>(number("FAKE_CUDA_SMS", 8)), 0;
    case 38:  // L2
      return *value = static_cast<int>(number("FAKE_CUDA_L2", 1 << 20)), 0;
    case 97:  // shared memory of a block
      return *value = (arch() == 90 ? 227 : 99) * 1024, 0;
    default:
      return *value = 1 << 20, 0;
  }
}

int cuDevicePrimaryCtxRetain(void** context, int) { return give(context); }
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxGetCurrent(void** context) { return *context = nullptr, 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuCtxPushCurrent_v2(void*) { return 0; }
int cuCtxPopCurrent_v2(void** context) { return *context = nullptr, 0; }
int cuCtxSynchronize() { return 0; }
int cuCtxSetLimit(int, std::size_t) { return 0; }

// A cubin is for one family of chips, and 209 is the error for another; an image that is not ELF is
// PTX.
int cuModuleLoadDataEx(void** module, const void* image, unsigned, int*, void**) {
  const bool cubin = std::memcmp(image, "\177ELF", 4) == 0;
  const auto error = static_cast<int>(number("FAKE_CUDA_NO_CUBINS", arch() > 90 ? 209 : 0));
  if (cubin && error != 0) return error;
  ++live_modules;
  return give(module);
}
int cuModuleUnload(void*) { return --live_modules, 0; }
int cuModuleGetFunction(void** function, void*, const char*) {
  const auto error = static_cast<int>(number("FAKE_CUDA_NO_FUNCTION", 0));
  return error != 0 ? error : give(function);
}
int cuFuncGetAttribute(int* value, int, void*) { return *value = 0, 0; }
int cuFuncSetAttribute(void*, int, int) { return 0; }
#if !defined(FAKE_CUDA_WITHOUT_LAUNCH)
int cuLaunchKernelEx(const LaunchConfig* config, void*, void**, void**) {
  for (unsigned i = 0; i < config->attribute_count; ++i)
    early_launches += config->attributes[i].id == kProgrammaticStreamSerialization ? 1 : 0;
  last_grid = static_cast<int>(config->grid[0]);
  return ++launches, 0;
}
#endif
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, std::size_t) {
  return *blocks = 1, 0;
}
int cuOccupancyMaxActiveClusters(int* clusters, void*, const LaunchConfig*) {
  return *clusters = 1, 0;
}

int cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  const std::int64_t limit = number("FAKE_CUDA_MEMORY", INT64_MAX);
  if (bytes > static_cast<std::size_t>(limit) - live_bytes()) return kOutOfMemory;
  void* const memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (memory == nullptr) return kOutOfMemory;
  *address = reinterpret_cast<std::uint64_t>(memory);
  allocations()[*address] = bytes;
  return 0;
}
int cuMemFree_v2(std::uint64_t address) {
  const std::lock_guard lock(mutex);
  if (allocations().erase(address) == 0) return 1;
  std::free(reinterpret_cast<void*>(address));
  return 0;
}
int cuMemGetInfo_v2(std::size_t* available, std::size_t* total) {
  return *available = *total = std::size_t{8} << 30, 0;
}
int cuMemAllocHost_v2(void**, std::size_t) { return kOutOfMemory; }
int cuMemFreeHost(void*) { return 0; }
int cuMemcpyHtoD_v2(std::uint64_t to, const void* from, std::size_t bytes) {
  return std::memcpy(reinterpret_cast<void*>(to), from, bytes), 0;
}
int cuMemcpyDtoH_v2(void* to, std::uint64_t from, std::size_t bytes) {
  return std::memcpy(to, reinterpret_cast<const void*>(from), bytes), 0;
}
int cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes, void*) {
  return cuMemcpyHtoD_v2(to, from, bytes);
}
int cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes, void*) {
  return cuMemcpyDtoH_v2(to, from, bytes);
}
int cuMemcpyDtoDAsync_v2(std::uint64_t to, std::uint64_t from, std::size_t bytes, void*) {
  return cuMemcpyDtoH_v2(reinterpret_cast<void*>(to), from, bytes);
}
int cuMemsetD8Async(std::uint64_t, unsigned char, std::size_t, void*) { return 0; }
int cuMemsetD32Async(std::uint64_t, unsigned, std::size_t, void*) { return 0; }
int cuPointerGetAttribute(void*, int, std::uint64_t) { return 1; }

int cuStreamCreate(void** stream, unsigned) { return give(stream); }
int cuStreamDestroy_v2(void*) { return 0; }
int cuStreamSynchronize(void*) { return 0; }
int cuStreamQuery(void*) { return 0; }
int cuStreamWaitEvent(void*, void*, unsigned) { return 0; }
int cuStreamIsCapturing(void*, int* status) { return *status = 0, 0; }
int cuStreamGetCtx(void*, void** context) { return give(context); }
int cuEventCreate(void** event, unsigned) { return give(event); }
int cuEventDestroy_v2(void*) { return 0; }
int cuEventRecord(void*, void*) { return 0; }
int cuEventQuery(void*) { return 0; }
int cuEventSynchronize(void*) { return 0; }
int cuEventElapsedTime(float* ms, void*, void*) { return *ms = 1, 0; }

int cuStreamBeginCapture_v2(void*, int) { return 0; }
int cuStreamEndCapture(void*, void** graph) { return give(graph); }
int cuGraphInstantiateWithFlags(void** replay, void*, unsigned long long) { return give(replay); }
int cuGraphLaunch(void*, void*) { return 0; }
int cuGraphExecDestroy(void*) { return 0; }
int cuGraphDestroy(void*) { return 0; }

#if !defined(FAKE_CUDA_WITHOUT_TENSOR_MAPS)
int cuTensorMapEncodeTiled(void*, int, std::uint32_t, void*, const void*, const void*, const void*,
                           const void*, int, int, int, int) {
  return ++encoded_maps, 0;
}
int cuTensorMapReplaceAddress(void*, void*) { return 0; }
#endif

#pragma GCC visibility pop
}
