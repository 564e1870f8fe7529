// SPDX-License-Identifier: Apache-2.0
// Opens libcuda and queries its GPUs.
#include "gpu/driver/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <atomic>

#include "numeric/fork_safe.h"

namespace octavo {
namespace {

Status failure(ErrorCode code, std::string message) { return {code, std::move(message)}; }

Result<GpuInfo> gpu_info(const Driver& d, int index) {
  GpuInfo info;
  info.index = index;
  cuda::DeviceOrdinal device = 0;
  OCTAVO_GPU_TRY(d, d.device_get(&device, index), "cuDeviceGet");
  std::array<char, 256> name{};
  OCTAVO_GPU_TRY(d, d.device_get_name(name.data(), static_cast<int>(name.size()) - 1, device),
                 "cuDeviceGetName");
  info.name = name.data();
  OCTAVO_GPU_TRY(d, d.device_total_mem(&info.memory_bytes, device), "cuDeviceTotalMem");
  OCTAVO_GPU_TRY(d, d.driver_get_version(&info.driver_version), "cuDriverGetVersion");
  using enum cuda::DeviceAttribute;
  int major_version = 0, minor_version = 0;
  const std::array<std::pair<cuda::DeviceAttribute, int*>, 5> needed = {
      {{major, &major_version},
       {minor, &minor_version},
       {sms, &info.sms},
       {smem_per_block_optin, &info.smem_per_block_optin},
       {l2_bytes, &info.l2_bytes}}};
  for (const auto& [attribute, value] : needed) {
    OCTAVO_GPU_TRY(d, d.device_get_attribute(value, attribute, device), "cuDeviceGetAttribute");
  }
  info.arch = major_version * 10 + minor_version;
  if (d.device_get_attribute(&info.clock_khz, clock_khz, device) != cuda::kSuccess) {
    info.clock_khz = 0;
  }
  info.tensor_maps = d.tensor_map_encode_tiled != nullptr;
  return info;
}

struct OpenedDriver {
  Result<Driver> driver = open_driver("libcuda.so.1");
};

}  // namespace

Status lost_by_fork() {
  return failure(
      ErrorCode::device_error,
      "The GPU was opened before fork(), and CUDA does not work in the child; supported: "
      "GPUs opened by the process that uses them.");
}

Status Driver::status(cuda::Error error, std::string_view call) const {
  if (error == cuda::kSuccess) return {};
  const char* name = nullptr;
  const char* text = nullptr;
  if (get_error_name(error, &name) != cuda::kSuccess || name == nullptr) name = "unknown error";
  if (get_error_string(error, &text) != cuda::kSuccess || text == nullptr) text = "no description";
  return failure(error == cuda::kOutOfMemory ? ErrorCode::out_of_memory : ErrorCode::device_error,
                 fmt::format("{} failed with CUDA error {}: {}, {}.", call, error, name, text));
}

Result<Driver> make_driver(SymbolLoader& loader, std::string_view library) {
  const Driver d(loader);
  if (!loader.missing().empty()) {
    return failure(ErrorCode::unsupported,
                   fmt::format("{} has no {}; supported: drivers of CUDA 12 and later.", library,
                               loader.missing()));
  }
  const cuda::Error error = d.init(0);
  if (error == cuda::kNoDevice) {
    return failure(ErrorCode::unsupported, "The CUDA driver sees no GPU.");
  }
  if (error != cuda::kSuccess) return d.status(error, "cuInit");
  return d;
}

Result<Driver> open_driver(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return failure(ErrorCode::unsupported,
                   fmt::format("The CUDA driver library {} cannot be opened.", library));
  }
  SymbolLoader loader([handle](const char* name) { return dlsym(handle, name); });
  return make_driver(loader, library);
}

Result<const Driver*> driver() {
  // One more than the fork count of the process that initialised CUDA; 0: not initialised. It is
  // set before the initialisation, because another thread may fork during it.
  static constinit std::atomic<unsigned> initialised{0};
  const unsigned here = fork_count() + 1;
  if (const unsigned by = initialised; by != 0 && by != here) return lost_by_fork();
  static constinit PerProcess<OpenedDriver> of_process;
  initialised = here;
  const Result<Driver>& opened = of_process.get().driver;
  if (opened.ok()) return &opened.value();
  initialised = 0;  // a forked child may try again
  return opened.status();
}

Result<std::vector<GpuInfo>> gpus(const Driver& driver) {
  int count = 0;
  OCTAVO_GPU_TRY(driver, driver.device_get_count(&count), "cuDeviceGetCount");
  std::vector<GpuInfo> list;
  for (int i = 0; i < count; ++i) {
    Result<GpuInfo> info = gpu_info(driver, i);
    if (!info.ok()) return info.status();
    list.push_back(std::move(info).value());
  }
  return list;
}

Result<std::vector<GpuInfo>> gpus() {
  const Result<const Driver*> opened = driver();
  if (!opened.ok()) return opened.status();
  return gpus(**opened);
}

}  // namespace octavo
