// SPDX-License-Identifier: Apache-2.0
// Lists devices and parses their names.
#include <charconv>

#include "base/error.h"
#include "cpu/attention.h"
#include "gpu/driver/driver.h"
#include "octavo/emulator.hpp"
#include "octavo/octavo.hpp"
#include "runtime/emulated/emulated_gpu.h"

namespace octavo {
namespace {

constexpr std::string_view kDeviceNames = "cpu, cuda, cuda:N, emulator, emulator:90, auto";

void append_gpus(std::vector<DeviceInfo>& found) {
  const Result<std::vector<GpuInfo>> all = gpus();
  if (!all.ok() || all->empty()) {
    found.push_back({{Device::Kind::cuda, 0},
                     "NVIDIA GPU",
                     false,
                     all.ok() ? "no GPU was found" : all.status().message()});
    return;
  }
  for (const GpuInfo& gpu : *all) {
    const bool served = gpu.arch >= 80;
    found.push_back({{Device::Kind::cuda, gpu.index},
                     fmt::format("{}, sm_{}, {} SMs, {} GB", gpu.name, gpu.arch, gpu.sms,
                                 gpu.memory_bytes >> 30),
                     served,
                     served ? "" : "older than sm_80"});
  }
}

}  // namespace

std::string name(Device device) {
  switch (device.kind) {
    case Device::Kind::cpu:
      return "cpu";
    case Device::Kind::cuda:
      return fmt::format("cuda:{}", device.index);
    case Device::Kind::emulator:
      return device.index == 0 ? "emulator" : fmt::format("emulator:{}", device.index);
  }
  return "unknown";
}

Result<Device> parse_device(std::string_view text) {
  return without_exceptions([&]() -> Result<Device> {
    if (text == "cpu") return Device{Device::Kind::cpu, 0};
    if (text == "emulator") return Device{Device::Kind::emulator, 0};
    if (text == "emulator:90") return Device{Device::Kind::emulator, 90};
    if (text == "cuda") return Device{Device::Kind::cuda, 0};
    if (text == "auto") {
      Device best{};
      for (const DeviceInfo& info : devices())
        if (info.available && info.device.kind == Device::Kind::cuda) return info.device;
      return best;
    }
    constexpr std::string_view kCuda = "cuda:";
    if (text.starts_with(kCuda)) {
      int index = -1;
      const char* end = text.data() + text.size();
      const auto parsed = std::from_chars(text.data() + kCuda.size(), end, index);
      if (parsed.ec == std::errc() && parsed.ptr == end && index >= 0)
        return Device{Device::Kind::cuda, index};
    }
    return invalid("device", fmt::format("'{}'", text), kDeviceNames);
  });
}

std::vector<DeviceInfo> devices() {
  Problem typical;
  typical.batch = typical.heads_q = typical.heads_kv = 1;
  typical.seqlen_q = typical.seqlen_kv = 512;
  typical.head_dim = typical.head_dim_v = 64;
  std::vector<DeviceInfo> found = {
      {{Device::Kind::cpu, 0}, cpu::describe_config(typical, cpu::thread_count()), true, ""}};
  append_gpus(found);
  for (const int chip : {0, 90}) {
    const Device device{Device::Kind::emulator, chip};
    found.push_back({device, has_emulator() ? describe_emulator(device) : "GPU kernels on the CPU",
                     has_emulator(),
                     has_emulator() ? "" : "this library was built without Boost.Context"});
  }
  return found;
}

Status set_cpu_threads(int threads) {
  return without_exceptions([&]() -> Status {
    constexpr int kMostThreads = 1024;
    if (threads < 0 || threads > kMostThreads)
      return invalid("threads", fmt::format("{}", threads), "0 (one per core) to 1024");
    cpu::set_thread_count(threads);
    return {};
  });
}

std::string_view version() { return OCTAVO_VERSION; }

}  // namespace octavo
