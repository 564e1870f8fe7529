// SPDX-License-Identifier: Apache-2.0
// CTAs that wait for each other through flags in global memory, and bulk stores and reductions that
// reach global memory late.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>
#include <type_traits>

#include "device/core/block_range.cuh"
#include "device/ptx/atomic.cuh"
#include "device/ptx/fence.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/tma.cuh"
#include "device/ptx/warpgroup.cuh"
#include "emulator/machine.h"

namespace octavo::emulator {
namespace {

constexpr u32 kCopyFloats = 32;

struct Memory {
  alignas(16) float sums[kCopyFloats] = {};
  alignas(16) u32 seen[64] = {};
  alignas(16) u32 flags[4] = {};
};

Report run(Memory& memory, std::int64_t blocks, std::optional<std::uint64_t> seed,
           const std::function<void()>& entry, bool programmatic = false) {
  GlobalMemory global;
  global.add_array("memory", &memory, sizeof memory, GlobalMemory::Use::write);
  Launch launch;
  launch.kernel = "test";
  launch.arch = 90;
  launch.blocks = blocks;
  launch.threads = 32;
  launch.smem_bytes = 1024;
  launch.programmatic = programmatic;
  launch.entry = entry;
  Settings settings;
  settings.seed = seed;
  Machine machine(launch, global, settings);
  machine.run();
  return machine.report();
}

// Without a seed, and with a few.
void for_each_schedule(const std::function<void(std::optional<std::uint64_t>)>& test) {
  test({});
  for (std::uint64_t seed = 0; seed < 20; ++seed) test(seed);
}

u32 block() { return static_cast<u32>(ptx::block_index_x()); }
bool is_first_thread() { return ptx::thread_index() == 0; }

void wait_for(const u32* flag, u32 value) {
  while (ptx::ld_acquire(flag) < value) {
  }
}

// The numbers that CTA `block` adds: their sum depends on the order.
float addend(u32 block, u32 i) { return block == 0 ? 1e8f : static_cast<float>(block + i) * 0.7f; }

// Each thread writes one float to shared memory for the copies of thread 0.
void fill_shared() {
  const u32 i = ptx::thread_index();
  ptx::store_shared_f32(ptx::shared_base() + i * 4, addend(block(), i));
  ptx::fence_proxy_async();
  ptx::cta_sync();
}

TEST(EmulatorFlags, CtasReduceInTheOrderOfTheirFlags) {
  constexpr u32 kBlocks = 9;
  float expected[kCopyFloats] = {};
  for (u32 b = 0; b < kBlocks; ++b)
    for (u32 i = 0; i < kCopyFloats; ++i) expected[i] += addend(b, i);
  for_each_schedule([&](std::optional<std::uint64_t> seed) {
    Memory memory;
    const Report report = run(memory, kBlocks, seed, [&memory] {
      fill_shared();
      if (!is_first_thread()) return;
      wait_for(memory.flags, block());
      ptx::bulk_reduce_add_f32(memory.sums, ptx::shared_base(), kCopyFloats * 4);
      ptx::bulk_commit();
      ptx::bulk_wait<0>();
      ptx::red_release_add(memory.flags, 1);
    });
    EXPECT_TRUE(report.clean()) << report.text();
    EXPECT_EQ(memory.flags[0], kBlocks);
    for (u32 i = 0; i < kCopyFloats; ++i) EXPECT_EQ(memory.sums[i], expected[i]) << i;
  });
}

TEST(EmulatorFlags, CtaMayWaitForOneThatStartsLater) {
  for_each_schedule([](std::optional<std::uint64_t> seed) {
    Memory memory;
    const Report report = run(memory, 5, seed, [&memory] {
      if (!is_first_thread()) return;
      if (block() + 1 < 5) wait_for(memory.flags, 4 - block());
      ptx::store_global_b32(memory.seen, block());
      ptx::red_release_add(memory.flags, 1);
    });
    EXPECT_TRUE(report.clean()) << report.text();
    EXPECT_EQ(memory.seen[0], 0U);  // CTA 0 is the last
  });
}

// A thread that looks at a flag between other steps is not stopped.
TEST(EmulatorFlags, PollingThreadGoesOn) {
  for_each_schedule([](std::optional<std::uint64_t> seed) {
    Memory memory;
    u32 polls = 0;
    const Report report = run(memory, 1, seed, [&] {
      if (!is_first_thread()) return;
      while (ptx::ld_acquire(memory.flags) == 0 && polls < 100) ++polls;
    });
    EXPECT_TRUE(report.clean()) << report.text();
    EXPECT_EQ(polls, 100U);
  });
}

TEST(EmulatorFlags, DeadlockReportNamesTheFlag) {
  Memory memory;
  const Report report = run(memory, 2, {}, [&memory] {
    if (is_first_thread()) wait_for(memory.flags + 1, 1);
  });
  ASSERT_EQ(report.findings().size(), 1U);
  EXPECT_EQ(report.findings()[0].hazard, Hazard::deadlock);
  const std::string text = report.text();
  for (const char* part : {"CTA 0: threads 0 wait for memory+", " to change, ld.acquire.gpu",
                           "CTA 1: threads 0 wait for memory+"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

// More CTAs than run at once: those with lower indices start first.
TEST(EmulatorFlags, ManyCtasInOrder) {
  constexpr u32 kBlocks = 700;
  Memory memory;
  const Report report = run(memory, kBlocks, {}, [&memory] {
    if (!is_first_thread()) return;
    wait_for(memory.flags, block());
    ptx::red_release_add(memory.flags, 1);
  });
  EXPECT_TRUE(report.clean()) << report.text();
  EXPECT_EQ(memory.flags[0], kBlocks);
}

TEST(EmulatorBulkStore, ReachesGlobalMemoryNoEarlierThanItsWait) {
  Memory memory;
  // Values in between are read behind the machine's back: a kernel's load would be a race.
  float after_read = -1.0f, after_wait = -1.0f;
  const Report report = run(memory, 1, {}, [&] {
    fill_shared();
    if (!is_first_thread()) return;
    ptx::bulk_reduce_add_f32(memory.sums, ptx::shared_base(), kCopyFloats * 4);
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
    ptx::store_shared_f32(ptx::shared_base(), 5.0f);  // the source has been read
    after_read = memory.sums[0];
    ptx::bulk_wait<0>();
    after_wait = memory.sums[0];
  });
  EXPECT_TRUE(report.clean()) << report.text();
  EXPECT_EQ(after_read, 0.0f);
  EXPECT_EQ(after_wait, addend(0, 0));
}

TEST(EmulatorBulkStore, ReachesGlobalMemoryAfterItsCtaHasEnded) {
  for_each_schedule([](std::optional<std::uint64_t> seed) {
    Memory memory;
    const Report report = run(memory, 3, seed, [&memory] {
      fill_shared();
      if (!is_first_thread()) return;
      ptx::bulk_reduce_add_f32(memory.sums, ptx::shared_base(), kCopyFloats * 4);
      ptx::bulk_commit();
      ptx::bulk_wait_read<0>();
    });
    EXPECT_TRUE(report.clean()) << report.text();
    for (u32 i = 0; i < kCopyFloats; ++i)
      EXPECT_NEAR(memory.sums[i], addend(0, i) + addend(1, i) + addend(2, i), 32.0f) << i;
  });
}

// Recorded on an H200. (red.global.add.f32 would flush them.)
TEST(EmulatorBulkStore, ReductionKeepsSubnormalNumbers) {
  Memory memory;
  memory.sums[0] = 1e-40f;
  memory.sums[1] = 2e-38f;
  memory.sums[2] = -1e-40f;
  const Report report = run(memory, 1, {}, [&memory] {
    const u32 i = ptx::thread_index();
    const float x = i == 0 ? 1.0f : i == 1 ? -1.5e-38f : i == 2 ? -0.0f : 0.0f;
    ptx::store_shared_f32(ptx::shared_base() + i * 4, x);
    ptx::fence_proxy_async();
    ptx::cta_sync();
    if (!is_first_thread()) return;
    ptx::bulk_reduce_add_f32(memory.sums, ptx::shared_base(), kCopyFloats * 4);
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
  });
  EXPECT_TRUE(report.clean()) << report.text();
  EXPECT_EQ(memory.sums[0], 1.0f);
  EXPECT_EQ(memory.sums[1], 2e-38f - 1.5e-38f);
  EXPECT_EQ(memory.sums[2], -1e-40f);
}

// An earlier grid of the stream may write cu_seqlens after a launch has started early.
TEST(EmulatorEarlyLaunch, CuSeqlensAreReadCoherently) {
  struct {
    const i32 *cu_seqlens_q, *cu_seqlens_kv;
    i32 tokens_q = 9, tokens_kv = 9, seqlen_q = 5, seqlen_kv = 5;
  } params{};
  Memory memory;
  params.cu_seqlens_q = params.cu_seqlens_kv = reinterpret_cast<const i32*>(memory.seen);
  for (u32 i = 0; i < 3; ++i) memory.seen[i] = 4 * i;
  const auto read = [&params]<bool kOverlaps>(std::bool_constant<kOverlaps>) {
    ptx::wait_for_earlier_grids();
    const SequenceSpan span = sequence_span<true, kOverlaps>(params, 1);
    EXPECT_EQ(span.q_begin, 4);
    EXPECT_EQ(span.seqlen_kv, 4);
  };
  const Report early = run(
      memory, 1, {}, [&] { read(std::true_type()); }, true);
  EXPECT_TRUE(early.clean()) << early.text();
  const Report late = run(
      memory, 1, {}, [&] { read(std::false_type()); }, false);
  EXPECT_TRUE(late.clean()) << late.text();
  const Report wrong = run(
      memory, 1, {}, [&] { read(std::false_type()); }, true);
  ASSERT_FALSE(wrong.clean());
  EXPECT_EQ(wrong.findings()[0].hazard, Hazard::non_coherent_read) << wrong.text();
}

}  // namespace
}  // namespace octavo::emulator
