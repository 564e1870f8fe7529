// SPDX-License-Identifier: Apache-2.0
// The same seed gives the same order, another seed another.
#include "emulator/schedule.h"

#include <gtest/gtest.h>

#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "emulator/machine.h"

namespace octavo::emulator {
namespace {

// The order in which threads leave a few barriers.
std::vector<int> order_of(std::optional<std::uint64_t> seed) {
  std::vector<int> order;
  Launch launch;
  launch.threads = 128;
  launch.blocks = 2;
  launch.smem_bytes = 512;
  launch.entry = [&order] {
    for (int i = 0; i < 3; ++i) {
      order.push_back(static_cast<int>(ptx::thread_index()));
      ptx::cta_sync();
    }
  };
  Settings settings;
  settings.seed = seed;
  Machine machine(launch, {}, settings);
  machine.run();
  EXPECT_TRUE(machine.report().clean());
  EXPECT_EQ(order.size(), 2U * 3 * 128);
  return order;
}

TEST(EmulatorSchedule, TheSameSeedGivesTheSameOrder) {
  EXPECT_EQ(order_of({}), order_of({}));
  for (std::uint64_t seed = 0; seed < 10; ++seed) EXPECT_EQ(order_of(seed), order_of(seed));
}

TEST(EmulatorSchedule, SeedsDiffer) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    EXPECT_NE(order_of(seed), order_of(seed + 1));
    EXPECT_NE(order_of(seed), order_of({}));
  }
}

}  // namespace
}  // namespace octavo::emulator
