// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "octavo/octavo.hpp"

namespace octavo {
namespace {

TEST(Device, NamesRoundTrip) {
  for (const char* text : {"cpu", "cuda:0", "cuda:3", "emulator", "emulator:90"})
    EXPECT_EQ(name(parse_device(text).value()), text);
  EXPECT_EQ(name(parse_device("cuda").value()), "cuda:0");
}

TEST(Device, UnknownNamesAreRefusedWithTheKnownOnes) {
  for (const char* text :
       {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "CPU", "emulator:", "emulator:75"}) {
    const Result<Device> parsed = parse_device(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().message(),
              std::string("device is '") + text +
                  "'; supported: cpu, cuda, cuda:N, emulator, emulator:90, auto.");
  }
}

TEST(Device, AutoIsAnAvailableDevice) {
  const Device best = parse_device("auto").value();
  for (const DeviceInfo& info : devices()) {
    if (info.device == best) {
      EXPECT_TRUE(info.available);
    }
  }
}

TEST(Device, MissingDeviceGivesAReason) {
  bool cpu = false;
  for (const DeviceInfo& info : devices()) {
    EXPECT_FALSE(info.description.empty());
    EXPECT_EQ(info.available, info.reason.empty());
    cpu = cpu || (info.device.kind == Device::Kind::cpu && info.available);
  }
  EXPECT_TRUE(cpu);
}

TEST(Device, ThreadCountsOutOfRangeAreRefused) {
  EXPECT_EQ(set_cpu_threads(-1).message(), "threads is -1; supported: 0 (one per core) to 1024.");
  EXPECT_FALSE(set_cpu_threads(1025).ok());
  EXPECT_TRUE(set_cpu_threads(0).ok());
}

}  // namespace
}  // namespace octavo
