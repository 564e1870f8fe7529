// SPDX-License-Identifier: Apache-2.0
// Samples a GPU's clock, power and throttle reasons during a measurement with NVML, which is opened
// at run time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gpu/driver/shared_library.h"
#include "octavo/octavo.hpp"

namespace octavo {

// One sample.
struct ClockReading {
  double clock_mhz = 0;
  double power_w = 0;
  std::uint64_t reasons = 0;  // NVML's bits
};

// Medians, and every throttle reason that was seen. Empty without samples.
struct ClockSummary {
  std::optional<double> clock_mhz{}, power_w{};
  std::optional<std::vector<std::string>> throttle{};
};
ClockSummary summarise(const std::vector<ClockReading>& readings);

// The NVML functions that are used.
struct Nvml {
  explicit Nvml(SymbolLoader& from) : from_(&from) { from_ = nullptr; }

 private:
  SymbolLoader* from_;  // first: the members below are initialised through it; then null

 public:
  using Handle = struct NvmlDevice*;
  // clang-format off
  int (*init)() = from_->needed("nvmlInit_v2");
  int (*handle_by_bus_id)(const char*, Handle*) = from_->needed("nvmlDeviceGetHandleByPciBusId_v2");
  int (*clock)(Handle, int kind, unsigned* mhz) = from_->needed("nvmlDeviceGetClockInfo");
  int (*power)(Handle, unsigned* milliwatts) = from_->needed("nvmlDeviceGetPowerUsage");
  int (*reasons)(Handle, unsigned long long*) = from_->needed("nvmlDeviceGetCurrentClocksThrottleReasons");
  // clang-format on

  std::optional<ClockReading> read(Handle device) const;
};

// Samples every few milliseconds in its own thread until the summary is requested. The summary has
// no values without NVML, or for a GPU that NVML does not know.
class ClockWatch {
 public:
  explicit ClockWatch(Device device);
  ClockWatch(const Nvml* nvml, Nvml::Handle device);  // null: takes no samples
  ClockWatch(const ClockWatch&) = delete;
  ClockWatch& operator=(const ClockWatch&) = delete;
  ~ClockWatch();

  ClockSummary finish();

 private:
  void start(const Nvml* nvml, Nvml::Handle device);

  std::atomic<bool> done_ = false;
  std::vector<ClockReading> readings_;  // owned by the thread until it is joined
  std::thread thread_;
};

}  // namespace octavo
