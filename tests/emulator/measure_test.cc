// SPDX-License-Identifier: Apache-2.0
// The memory accesses and instructions of the kernels.
#include <gtest/gtest.h>

#include <algorithm>

#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "emulator/long.h"
#include "emulator/machine.h"
#include "octavo/emulator.hpp"

namespace octavo {
namespace {

// Accesses with known bank conflicts: docs/emulator.md lists them.
bool is_known_conflict(const EmulatedKernel& kernel, const std::string& place) {
  const auto at = [&place](const char* file) { return place.find(file) != std::string::npos; };
  const auto has = [&kernel](const char* field) {
    return kernel.config.find(field) != std::string::npos;
  };
  return (at("sm80/epilogue.cuh") && has(".output={.element=Element::f32")) ||
         (at("sm90/score_tiles.cuh") && has(".bias_element=Element::f32")) ||
         (at("quantize/quantize.cuh") && has(".group=ScaleGroup::channel") &&
          has(".amax_pass=true"));
}

// One kernel in five, and without Hopper's bf16 kernels, which access the same addresses as its
// f16 kernels; all in `make test-long`.
TEST(EmulatorMeasure, NoKernelHasBankConflicts) {
  const std::vector<EmulatedKernel> kernels = emulated_kernels();
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    const EmulatedKernel& kernel = kernels[i];
    const bool is_bf16 = kernel.config.find("=Element::bf16") != std::string::npos;
    const bool is_twin = kernel.kernel == "sm90_forward" && is_bf16;
    if (!test_long() && (is_twin || i % 5 != 0)) continue;
    const Result<std::vector<MeasureReport>> reports = emulator_measure(std::to_string(i));
    ASSERT_TRUE(reports.ok()) << reports.status().message();
    const MeasureReport& report = reports->at(0);
    EXPECT_EQ(report.failure, "") << report.brief;
    EXPECT_FALSE(report.lines.empty()) << report.brief;
    std::int64_t known = 0;
    for (const MeasuredLine& line : report.lines) {
      if (!line.shared) continue;
      if (is_known_conflict(kernel, line.place))
        known += line.taken - line.needed;
      else
        EXPECT_EQ(line.taken, line.needed) << report.brief << ": " << line.place;
    }
    EXPECT_EQ(report.bank_conflicts, known) << report.brief;
  }
}

// Measures a warp that stores words `stride` apart.
emulator::Measures stored(std::uint32_t stride) {
  emulator::Launch launch;
  launch.smem_bytes = 32 * 4 * 64;
  launch.entry = [stride] {
    ptx::store_shared_b32(ptx::shared_base() + ptx::thread_index() * stride * 4, 1);
  };
  emulator::Settings settings;
  settings.measure = true;
  emulator::Machine machine(launch, {}, settings);
  machine.run();
  EXPECT_TRUE(machine.report().clean()) << machine.report().text();
  return machine.measures();
}

TEST(EmulatorMeasure, BankConflictsAreCountedExactly) {
  EXPECT_EQ(stored(1).bank_conflicts(), 0);
  EXPECT_EQ(stored(2).bank_conflicts(), 1);
  EXPECT_EQ(stored(3).bank_conflicts(), 0);
  EXPECT_EQ(stored(8).bank_conflicts(), 7);
  EXPECT_EQ(stored(33).bank_conflicts(), 0);
  EXPECT_EQ(stored(32).bank_conflicts(), 31);
}

TEST(EmulatorMeasure, SectorsAreCountedExactly) {
  alignas(128) static float tensor[1024] = {};
  const auto sectors = [](int stride, int offset) {
    emulator::GlobalMemory memory;
    memory.add_array("tensor", tensor, sizeof tensor, emulator::GlobalMemory::Use::read);
    emulator::Launch launch;
    launch.entry = [=] {
      ptx::load_global_f32(tensor + offset + static_cast<int>(ptx::thread_index()) * stride);
    };
    emulator::Settings settings;
    settings.measure = true;
    emulator::Machine machine(launch, memory, settings);
    machine.run();
    return machine.measures().lines().at(0);
  };
  EXPECT_EQ(sectors(1, 0).taken, 4);
  EXPECT_EQ(sectors(1, 0).needed, 4);
  EXPECT_EQ(sectors(1, 4).taken, 5);
  EXPECT_EQ(sectors(2, 0).taken, 8);
  EXPECT_EQ(sectors(2, 0).needed, 4);
  EXPECT_EQ(sectors(16, 0).taken, 32);
  EXPECT_EQ(sectors(0, 0).taken, 1);
}

TEST(EmulatorMeasure, TensorAndExponentialCountsFollowFromTheShape) {
  const Result<std::vector<MeasureReport>> reports = emulator_measure("0");
  ASSERT_TRUE(reports.ok());
  std::int64_t mma = 0, ex2 = 0;
  // The first kernel: f16, D = 64, tiles of 128 x 128, 133 queries and 3 * 128 + 7 keys: two tiles
  // of four steps, each 2 * 128 * 128 * 64 multiply-adds, of which an mma does 16 * 8 * 16.
  const MeasureReport& first = reports->front();
  for (const MeasuredCount& count : first.counts) {
    if (count.instruction.starts_with("mma.")) mma += count.times;
    if (count.instruction == "ex2") ex2 += count.times;
  }
  EXPECT_EQ(mma, 2 * 4 * 2 * 128 * 128 * 64 / (16 * 8 * 16))
      << first.brief << " " << first.case_name;
  EXPECT_GE(ex2, 2 * 4 * 128 * 128) << first.brief;
}

}  // namespace
}  // namespace octavo
