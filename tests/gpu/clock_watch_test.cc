// SPDX-License-Identifier: Apache-2.0
// Clocks from a fake NVML, and the summary of the readings.
#include "gpu/driver/clock_watch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string_view>
#include <thread>

namespace octavo {
namespace {

std::atomic<int> looks = 0;
int fake_init() { return 0; }
int fake_handle(const char*, Nvml::Handle*) { return 0; }
int fake_clock(Nvml::Handle, int kind, unsigned* mhz) {
  return *mhz = 1755, ++looks, kind == 1 ? 0 : 2;
}
int fake_power(Nvml::Handle, unsigned* milliwatts) { return *milliwatts = 512'000, 0; }
int fake_reasons(Nvml::Handle, unsigned long long* bits) { return *bits = 0x5, 0; }
int fake_refusal(Nvml::Handle, unsigned*) { return 3; }

Nvml fake_nvml(bool with_power) {
  SymbolLoader loader([with_power](const char* name) -> void* {
    const std::map<std::string_view, void*> known = {
        {"nvmlInit_v2", reinterpret_cast<void*>(fake_init)},
        {"nvmlDeviceGetHandleByPciBusId_v2", reinterpret_cast<void*>(fake_handle)},
        {"nvmlDeviceGetClockInfo", reinterpret_cast<void*>(fake_clock)},
        {"nvmlDeviceGetPowerUsage",
         reinterpret_cast<void*>(with_power ? fake_power : fake_refusal)},
        {"nvmlDeviceGetCurrentClocksThrottleReasons", reinterpret_cast<void*>(fake_reasons)}};
    const auto found = known.find(name);
    return found == known.end() ? nullptr : found->second;
  });
  Nvml nvml(loader);
  EXPECT_EQ(loader.missing(), "");
  return nvml;
}

Nvml::Handle some_device() {
  static int device = 0;
  return reinterpret_cast<Nvml::Handle>(&device);
}

TEST(ClockWatch, MediansAndAllThrottleReasons) {
  const ClockSummary summary =
      summarise({{1980, 300, 0x1}, {1500, 690, 0x4}, {1400, 700, 0x44}, {1450, 695, 0}});
  EXPECT_EQ(summary.clock_mhz, 1500);
  EXPECT_EQ(summary.power_w, 695);
  ASSERT_TRUE(summary.throttle.has_value());
  EXPECT_EQ(*summary.throttle,
            (std::vector<std::string>{"power cap", "hardware thermal slowdown"}));
  EXPECT_TRUE(summarise({{1980, 300, 0x1}}).throttle->empty()) << "idle is no reason";
  EXPECT_FALSE(summarise({}).clock_mhz.has_value());
  EXPECT_FALSE(summarise({}).throttle.has_value()) << "not known is not none";
}

TEST(ClockWatch, ReadsWhileItRuns) {
  const Nvml nvml = fake_nvml(true);
  looks = 0;
  ClockWatch watch(&nvml, some_device());
  std::this_thread::sleep_for(std::chrono::milliseconds(40));
  const ClockSummary summary = watch.finish();
  EXPECT_GT(looks, 2);
  EXPECT_EQ(summary.clock_mhz, 1755);
  EXPECT_EQ(summary.power_w, 512);
  EXPECT_EQ(*summary.throttle, std::vector<std::string>{"power cap"});
  const int after = looks;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(looks, after);
}

TEST(ClockWatch, UnreadableClocksAreUnknown) {
  const Nvml nvml = fake_nvml(false);
  EXPECT_FALSE(ClockWatch(&nvml, some_device()).finish().clock_mhz.has_value());
  EXPECT_FALSE(ClockWatch(nullptr, nullptr).finish().clock_mhz.has_value());
  EXPECT_FALSE(ClockWatch(Device{}).finish().clock_mhz.has_value()) << "the CPU";
}

}  // namespace
}  // namespace octavo
