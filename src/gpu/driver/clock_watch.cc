// SPDX-License-Identifier: Apache-2.0
#include "gpu/driver/clock_watch.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <system_error>

#include "gpu/driver/context.h"
#include "numeric/fork_safe.h"

namespace octavo {
namespace {

constexpr int kSmClock = 1;  // nvmlClockType_t
constexpr int kNvmlSuccess = 0;

// Throttle reasons. An idle GPU does not count; a clock limit set by an application does.
constexpr std::array<std::pair<std::uint64_t, const char*>, 8> kReasons = {
    {{0x2, "application clocks"},
     {0x4, "power cap"},
     {0x8, "hardware slowdown"},
     {0x10, "sync boost"},
     {0x20, "software thermal slowdown"},
     {0x40, "hardware thermal slowdown"},
     {0x80, "hardware power brake"},
     {0x100, "display clock"}}};

const Nvml* open_nvml() {
  static constinit MadeOnce<std::unique_ptr<const Nvml>> opened;
  return opened
      .get([]() -> std::unique_ptr<const Nvml> {
        void* const handle = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
        if (handle == nullptr) return nullptr;
        SymbolLoader loader([handle](const char* symbol) { return dlsym(handle, symbol); });
        auto nvml = std::make_unique<const Nvml>(loader);
        if (!loader.missing().empty() || nvml->init() != kNvmlSuccess) return nullptr;
        return nvml;
      })
      .get();
}

// NVML numbers GPUs in its own order and includes those hidden from CUDA.
Nvml::Handle nvml_handle(const Nvml& nvml, Device device) {
  const Result<const Gpu*> gpu = open_gpu(device.index);
  if (!gpu.ok()) return nullptr;
  const Driver& d = *(*gpu)->driver;
  cuda::DeviceOrdinal ordinal = 0;
  std::array<char, 32> bus_id{};
  Nvml::Handle handle = nullptr;
  if (d.device_get_pci_bus_id == nullptr ||
      d.device_get(&ordinal, device.index) != cuda::kSuccess ||
      d.device_get_pci_bus_id(bus_id.data(), static_cast<int>(bus_id.size()), ordinal) !=
          cuda::kSuccess ||
      nvml.handle_by_bus_id(bus_id.data(), &handle) != kNvmlSuccess)
    return nullptr;
  return handle;
}

double median_of(const std::vector<ClockReading>& readings, double ClockReading::*field) {
  std::vector<double> values;
  for (const ClockReading& r : readings) values.push_back(r.*field);
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

ClockSummary summarise(const std::vector<ClockReading>& readings) {
  ClockSummary summary;
  if (readings.empty()) return summary;
  summary.clock_mhz = median_of(readings, &ClockReading::clock_mhz);
  summary.power_w = median_of(readings, &ClockReading::power_w);
  std::uint64_t seen = 0;
  for (const ClockReading& r : readings) seen |= r.reasons;
  summary.throttle.emplace();
  for (const auto& [bit, name] : kReasons)
    if ((seen & bit) != 0) summary.throttle->emplace_back(name);
  return summary;
}

std::optional<ClockReading> Nvml::read(Handle device) const {
  unsigned mhz = 0, milliwatts = 0;
  unsigned long long bits = 0;
  if (clock(device, kSmClock, &mhz) != kNvmlSuccess || power(device, &milliwatts) != kNvmlSuccess ||
      reasons(device, &bits) != kNvmlSuccess)
    return std::nullopt;
  return ClockReading{static_cast<double>(mhz), static_cast<double>(milliwatts) * 1e-3, bits};
}

ClockWatch::ClockWatch(Device device) {
  const Nvml* const nvml = device.kind == Device::Kind::cuda ? open_nvml() : nullptr;
  start(nvml, nvml == nullptr ? nullptr : nvml_handle(*nvml, device));
}

ClockWatch::ClockWatch(const Nvml* nvml, Nvml::Handle device) { start(nvml, device); }

void ClockWatch::start(const Nvml* nvml, Nvml::Handle device) {
  if (nvml == nullptr || device == nullptr) return;
  const auto watch = [this, nvml, device] {
    constexpr std::chrono::milliseconds kPause{5};
    do {
      if (const std::optional<ClockReading> reading = nvml->read(device))
        readings_.push_back(*reading);
      std::this_thread::sleep_for(kPause);
    } while (!done_);
  };
  try {
    thread_ = std::thread(watch);
  } catch (const std::system_error&) {  // without a thread there are no readings
  }
}

ClockWatch::~ClockWatch() { (void)finish(); }

ClockSummary ClockWatch::finish() {
  done_ = true;
  if (thread_.joinable()) thread_.join();
  return summarise(readings_);
}

}  // namespace octavo
