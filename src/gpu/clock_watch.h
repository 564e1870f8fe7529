// The clock and the power of a GPU while something is timed, and what held the clock back: by NVML,
// opened at run time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gpu/symbol_loader.h"
#include "octavo/octavo.hpp"

namespace octavo {

// One look.
struct ClockReading {
  double clock_mhz = 0;
  double power_w = 0;
  std::uint64_t reasons = 0;  // NVML's bits
};

// Medians, and every reason that was seen. Without a reading nothing is known.
struct ClockSummary {
  std::optional<double> clock_mhz{}, power_w{};
  std::optional<std::vector<std::string>> throttle{};
};
ClockSummary summarise(const std::vector<ClockReading>& readings);

// The functions of NVML that are called.
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

// Looks every few milliseconds from a thread of its own until it is asked. A GPU that NVML does not
// know, or a machine without it, gives a summary without values.
class ClockWatch {
 public:
  explicit ClockWatch(Device device);
  ClockWatch(const Nvml* nvml, Nvml::Handle device);  // null: nothing is known
  ClockWatch(const ClockWatch&) = delete;
  ClockWatch& operator=(const ClockWatch&) = delete;
  ~ClockWatch();

  ClockSummary finish();

 private:
  void start(const Nvml* nvml, Nvml::Handle device);

  std::atomic<bool> done_ = false;
  std::vector<ClockReading> readings_;  // the thread's, until it is joined
  std::thread thread_;
};

}  // namespace octavo
