// SPDX-License-Identifier: Apache-2.0
// The host cost of a call beside its launch, counted by a fake driver: one launch, no tensor map
// encoded twice, no allocation, in any thread.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "counting_allocator.h"
#include "gpu/jit/kernel_archive.h"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

using test::allocations;

constexpr Device kGpu{Device::Kind::cuda, 0};

class HostPath : public testing::Test {
 protected:
  // dlopen returns a library of that name that is already loaded, so the fake driver is found.
  static void SetUpTestSuite() {
    void* const library = dlopen(OCTAVO_FAKE_CUDA "/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    encoded_maps = reinterpret_cast<int (*)()>(dlsym(library, "fake_cuda_encoded_maps"));
    launches = reinterpret_cast<int (*)()>(dlsym(library, "fake_cuda_launches"));
    early_launches = reinterpret_cast<int (*)()>(dlsym(library, "fake_cuda_early_launches"));
    last_grid = reinterpret_cast<int (*)()>(dlsym(library, "fake_cuda_last_grid"));
    ASSERT_NE(last_grid, nullptr);
    ASSERT_TRUE(encoded_maps != nullptr && launches != nullptr && early_launches != nullptr);
    setenv("FAKE_CUDA_ARCH", "90", 1);
    setenv("OCTAVO_NVRTC", OCTAVO_FAKE_NVRTC, 1);
    setenv("OCTAVO_CACHE_DIR", "/proc/octavo", 1);
  }

  // The memory is never read: only the addresses matter.
  static Arguments arguments(std::int64_t seqlen_q, std::int64_t seqlen_kv,
                             std::uintptr_t at = 1 << 20) {
    const auto place = [at](std::uintptr_t i) { return reinterpret_cast<void*>(at + (i << 32)); };
    Arguments a;
    a.q = Tensor::bhsd(place(1), DType::f16, 2, 8, seqlen_q, 64);
    a.k = Tensor::bhsd(place(2), DType::f16, 2, 8, seqlen_kv, 64);
    a.v = Tensor::bhsd(place(3), DType::f16, 2, 8, seqlen_kv, 64);
    a.out = Tensor::bhsd(place(4), DType::f16, 2, 8, seqlen_q, 64);
    return a;
  }
  static Arguments self_attention(std::int64_t batch, std::int64_t heads, std::int64_t length,
                                  std::uintptr_t at = 1 << 20) {
    const auto place = [at](std::uintptr_t i) { return reinterpret_cast<void*>(at + (i << 32)); };
    Arguments a;
    a.q = Tensor::bhsd(place(1), DType::f16, batch, heads, length, 64);
    a.k = Tensor::bhsd(place(2), DType::f16, batch, heads, length, 64);
    a.v = Tensor::bhsd(place(3), DType::f16, batch, heads, length, 64);
    a.out = Tensor::bhsd(place(4), DType::f16, batch, heads, length, 64);
    return a;
  }
  static Plan planned(const Arguments& a) { return *plan(*problem_of(a), kGpu); }
  static Workspace workspace_of(const Plan& plan, const Arguments& a, std::uintptr_t at) {
    return {reinterpret_cast<void*>(at), plan.workspace_bytes(a)};
  }

  struct Cost {
    int maps = 0, launches = 0;
    std::int64_t allocations = 0;
    bool operator==(const Cost&) const = default;
  };
  template <class Work>
  static Cost cost(const Work& work) {
    const int maps = encoded_maps(), launched = launches();
    const std::int64_t allocated = allocations;
    EXPECT_TRUE(work());
    const std::int64_t allocated_then = allocations;
    return {encoded_maps() - maps, launches() - launched, allocated_then - allocated};
  }
  static constexpr Cost kOneLaunch{0, 1, 0};

  static inline int (*encoded_maps)() = nullptr;
  static inline int (*launches)() = nullptr;
  static inline int (*early_launches)() = nullptr;
  static inline int (*last_grid)() = nullptr;
};

TEST_F(HostPath, SecondRunIsOneLaunch) {
  const Arguments a = arguments(512, 384);
  const Plan plan = planned(a);
  ASSERT_EQ(plan.explain().kernel, "sm90_forward");
  const Cost first = cost([&] { return plan.run(a).ok(); });
  EXPECT_EQ(first.launches, 1);
  EXPECT_GT(first.maps, 0);
  EXPECT_GT(allocations, 0) << "the counter is not connected";
  EXPECT_EQ(cost([&] { return plan.run(a).ok(); }), kOneLaunch);
  const Arguments elsewhere = arguments(512, 384, 1 << 24);
  EXPECT_EQ(cost([&] { return plan.run(elsewhere).ok(); }), kOneLaunch) << "other addresses";
  EXPECT_EQ(cost([&] { return plan.run(a).ok(); }), kOneLaunch);
}

// The fake GPU has eight SMs.
TEST_F(HostPath, PersistentGridsLeaveSmsFree) {
  Arguments varlen = self_attention(1, 16, 4096);
  const auto cu_seqlens = reinterpret_cast<const std::int32_t*>(std::uintptr_t{6} << 32);
  varlen.cu_seqlens_q = varlen.cu_seqlens_kv = cu_seqlens;
  varlen.sequences = 3;
  varlen.max_seqlen_q = varlen.max_seqlen_kv = 2048;
  Arguments decode = self_attention(1, 1, 8192);
  decode.q = Tensor::bhsd(const_cast<void*>(decode.q.data), DType::f16, 1, 1, 1, 64);
  decode.out = Tensor::bhsd(decode.out.data, DType::f16, 1, 1, 1, 64);
  for (const std::int64_t margin : {0, 1, 3, 7}) {
    Options options;
    options.sm_margin = margin;
    const auto grid_of = [&](const Arguments& a, std::string_view kernel) {
      const Plan plan = *octavo::plan(*problem_of(a, options), kGpu);
      const Explanation explained = plan.explain();
      EXPECT_EQ(explained.kernel, kernel);
      const std::string note = std::to_string(margin) + " of 8 SMs are left free";
      EXPECT_EQ(explained.reason.find(note) != std::string::npos, margin > 0) << explained.reason;
      const Workspace workspace{reinterpret_cast<void*>(std::uintptr_t{1} << 40),
                                plan.workspace_bytes(a)};
      EXPECT_TRUE(plan.run(a, workspace).ok());
      const int grid = last_grid();
      EXPECT_TRUE(plan.run(a, workspace).ok());
      EXPECT_EQ(last_grid(), grid) << "the repeated launch";
      return grid;
    };
    EXPECT_EQ(grid_of(self_attention(1, 16, 4096), "sm90_forward"), 8 - margin);
    // Without a margin varlen batches get one CTA for each tile.
    const int varlen_grid = grid_of(varlen, "sm90_forward");
    if (margin == 0)
      EXPECT_GT(varlen_grid, 8);
    else
      EXPECT_EQ(varlen_grid, 8 - margin);
    // The work tile has a cluster of as many CTAs as the SMs hold, a power of two. A single SM has
    // no cluster, and one CTA combines.
    EXPECT_EQ(grid_of(decode, "decode"), margin == 0 ? 8 : margin < 7 ? 4 : 1);
  }
}

TEST_F(HostPath, MarginsOutOfRangeAreRefused) {
  const Arguments a = self_attention(1, 16, 4096);
  Options options;
  options.sm_margin = 8;
  const auto refused = octavo::plan(*problem_of(a, options), kGpu);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().message(),
            "sm_margin is 8; supported: 0 to 7 on cuda:0, which has 8 SMs.");
  EXPECT_TRUE(octavo::plan(*problem_of(a, options), Device{}).ok()) << "the CPU ignores it";
  options.sm_margin = -1;
  const auto negative = problem_of(a, options);
  ASSERT_FALSE(negative.ok());
  EXPECT_EQ(negative.status().message(),
            "sm_margin is -1; supported: 0 (none) to the SMs of the GPU less one.");
}

// The margin changes neither the configuration nor, with it, the bits; a kernel of one CTA for each
// tile says that it has no effect.
TEST_F(HostPath, TheMarginDoesNotChangeTheKernel) {
  for (const std::int64_t length : {64, 512, 4096})
    for (const Causal causal : {Causal::none, Causal::top_left}) {
      Options options;
      options.causal = causal;
      const Arguments a = self_attention(1, 2, length);
      const Explanation before = octavo::plan(*problem_of(a, options), kGpu)->explain();
      options.sm_margin = 4;
      const Explanation after = octavo::plan(*problem_of(a, options), kGpu)->explain();
      EXPECT_EQ(after.config, before.config);
      const bool split = before.reason.find("split-KV") != std::string::npos;
      EXPECT_EQ(after.reason.find("no effect on one CTA") != std::string::npos, split)
          << after.reason;
    }
}

TEST_F(HostPath, ANewLengthOrStrideIsEncodedOnce) {
  const Plan plan = planned(arguments(512, 512));
  for (const std::int64_t length : {448, 320}) {
    const Arguments a = arguments(512, length);
    EXPECT_GT(cost([&] { return plan.run(a).ok(); }).maps, 0) << length;
    EXPECT_EQ(cost([&] { return plan.run(a).ok(); }), kOneLaunch) << length;
  }
  Arguments strided = arguments(512, 512);
  strided.k.stride[2] = 128;
  strided.k.stride[1] *= 2;
  strided.k.stride[0] *= 2;
  EXPECT_GT(cost([&] { return plan.run(strided).ok(); }).maps, 0);
  EXPECT_EQ(cost([&] { return plan.run(strided).ok(); }), kOneLaunch);
  EXPECT_EQ(cost([&] { return plan.run(arguments(512, 448)).ok(); }), kOneLaunch)
      << "an earlier one is still known";
}

// A server that sees every length keeps a bounded number of them, and still works.
TEST_F(HostPath, ManyLengthsLaunchOnceEachWithoutAllocating) {
  const Plan plan = planned(arguments(512, 512));
  for (std::int64_t length = 8; length < 512; length += 8) {
    const Cost here = cost([&] { return plan.run(arguments(512, length)).ok(); });
    EXPECT_EQ(here.launches, 1) << length;
    EXPECT_EQ(here.allocations, 0) << length;
  }
}

TEST_F(HostPath, OneCallFormIsOneLaunch) {
  const Arguments a = arguments(256, 256);
  Options masked;
  masked.causal = Causal::bottom_right;
  for (const Options& options : {Options{}, masked}) {
    ASSERT_TRUE(attention(a, options, kGpu).ok());
    EXPECT_EQ(cost([&] { return attention(a, options, kGpu).ok(); }), kOneLaunch);
  }
  EXPECT_EQ(cost([&] { return attention(a, {}, kGpu).ok(); }), kOneLaunch);
}

// A run that equals the last one is still validated.
TEST_F(HostPath, RepeatedRunsAreValidated) {
  const Arguments a = arguments(512, 384);
  const Plan plan = planned(a);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(plan.run(a).ok());
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(attention(a, {}, kGpu).ok());
  const auto refusals = [&](const Arguments& b) {
    const Status status = plan.run(b);
    EXPECT_EQ(status.code(), ErrorCode::invalid_argument) << status.message();
    EXPECT_EQ(attention(b, {}, kGpu).code(), ErrorCode::invalid_argument);
    EXPECT_TRUE(plan.run(a).ok());
    return status.message();
  };
  Arguments b = a;
  b.out.data = const_cast<void*>(a.v.data);
  EXPECT_EQ(refusals(b), "out is in memory that v also covers; supported: memory apart from v.");
  b = a;
  b.k.data = nullptr;
  EXPECT_EQ(refusals(b).substr(0, 6), "k.data");
  b = a;
  b.k.shape[2] = 383;
  EXPECT_EQ(refusals(b).substr(0, 7), "v.shape");
  // If TMA cannot be used, the other family runs.
  b = a;
  b.k.data = static_cast<const std::byte*>(a.k.data) + 8;
  ASSERT_TRUE(plan.run(b).ok());
  EXPECT_EQ(cost([&] { return plan.run(b).ok(); }), kOneLaunch);
}

// One launch quantizes Q, K and V, or two if no cluster holds a head of V. The launches of one call
// may overlap; the call overlaps earlier work only if the caller allows it.
TEST_F(HostPath, LaunchesOfACallThatQuantizes) {
  for (const std::int64_t keys : {512, 2048}) {
    const Arguments a = arguments(512, keys);
    int early[2] = {};
    for (const bool overlap : {false, true}) {
      Options options;
      options.precision = Precision::fp8;
      options.overlap_launch = overlap;
      const Plan plan = *octavo::plan(*problem_of(a, options), kGpu);
      ASSERT_EQ(plan.explain().kernel, "sm90_forward");
      const Workspace workspace{reinterpret_cast<void*>(std::uintptr_t{1} << 40),
                                plan.workspace_bytes(a)};
      ASSERT_TRUE(plan.run(a, workspace).ok());
      const int before = early_launches();
      EXPECT_EQ(cost([&] { return plan.run(a, workspace).ok(); }).launches, keys == 512 ? 2 : 3);
      early[overlap ? 1 : 0] = early_launches() - before;
    }
    EXPECT_GE(early[0], keys == 512 ? 0 : 1) << keys;
    EXPECT_EQ(early[1], early[0] + 1) << keys;
  }
}

// A repeated run allocates nothing and launches what the first one launched, in every precision.
TEST_F(HostPath, RepeatedRunsDoNotAllocate) {
  for (const Causal causal : {Causal::none, Causal::top_left})
    for (const std::int64_t length : {512, 16384})
      for (const Precision precision :
           {Precision::native, Precision::fp8, Precision::fp8_mixed, Precision::fp8_fast,
            Precision::int8, Precision::int8_mixed, Precision::automatic}) {
        Options options;
        options.causal = causal;
        options.precision = precision;
        if (precision == Precision::automatic) options.max_error = 1;
        const Arguments a = self_attention(1, 32, length);
        const Arguments elsewhere = self_attention(1, 32, length, 1 << 24);
        const Plan plan = *octavo::plan(*problem_of(a, options), kGpu);
        ASSERT_EQ(plan.explain().kernel, "sm90_forward");
        const Workspace here = workspace_of(plan, a, std::uintptr_t{1} << 40);
        const Workspace there = workspace_of(plan, a, std::uintptr_t{1} << 41);
        const Cost first = cost([&] { return plan.run(a, here).ok(); });
        const Cost repeated{0, first.launches, 0};
        const auto what = [&] { return std::string(name(precision)) + std::to_string(length); };
        EXPECT_EQ(first.allocations, 0) << what();
        EXPECT_EQ(cost([&] { return plan.run(a, here).ok(); }), repeated) << what();
        EXPECT_EQ(cost([&] { return plan.run(elsewhere, here).ok(); }), repeated) << what();
        EXPECT_EQ(cost([&] { return plan.run(a, there).ok(); }), repeated) << what();
        ASSERT_TRUE(attention(a, options, kGpu).ok());
        EXPECT_EQ(cost([&] { return attention(elsewhere, options, kGpu).ok(); }), repeated)
            << what();
      }
}

// Other lengths than the plan's are resolved by the run that has them, without an allocation.
TEST_F(HostPath, ANewLengthDoesNotAllocate) {
  for (const Precision precision : {Precision::native, Precision::fp8}) {
    Options options;
    options.causal = Causal::bottom_right;
    options.precision = precision;
    const Plan plan = *octavo::plan(*problem_of(self_attention(1, 32, 16384), options), kGpu);
    const Workspace workspace{reinterpret_cast<void*>(std::uintptr_t{1} << 40),
                              plan.workspace_bytes()};
    for (const std::int64_t length : {16000, 8192, 100}) {
      const Arguments a = self_attention(1, 32, length);
      EXPECT_EQ(cost([&] { return plan.run(a, workspace).ok(); }).allocations, 0) << length;
    }
  }
}

// A repeated run that quantizes needs its workspace like the first one.
TEST_F(HostPath, RepeatedRunsCheckTheWorkspace) {
  Options options;
  options.precision = Precision::fp8;
  const Arguments a = arguments(512, 512);
  const Plan plan = *octavo::plan(*problem_of(a, options), kGpu);
  const Workspace workspace = workspace_of(plan, a, std::uintptr_t{1} << 40);
  ASSERT_TRUE(plan.run(a, workspace).ok());
  const int before = launches();
  EXPECT_EQ(plan.run(a).message().substr(0, 25), "workspace is 0 bytes at n");
  EXPECT_EQ(plan.run(a, {workspace.data, workspace.bytes - 1}).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(launches(), before);
  EXPECT_TRUE(plan.run(a, workspace).ok());
}

// A repeated call may have 8-bit inputs of its own: other addresses of scales are taken over, and
// anything else about them is validated.
TEST_F(HostPath, RepeatedRunsOf8BitInputs) {
  const auto scales = [](std::uintptr_t at) { return reinterpret_cast<const float*>(at << 44); };
  Arguments a = arguments(512, 512);
  for (ConstTensor* const t : {&a.q, &a.k, &a.v}) t->dtype = DType::e4m3;
  a.q_scales.data = scales(1);
  a.k_scales.data = scales(2);
  a.v_scales.data = scales(3);
  const Plan plan = planned(a);
  const Workspace workspace = workspace_of(plan, a, std::uintptr_t{1} << 40);
  const Cost first = cost([&] { return plan.run(a, workspace).ok(); });
  Arguments b = a;
  b.k_scales.data = scales(4);
  EXPECT_EQ(cost([&] { return plan.run(b, workspace).ok(); }), (Cost{0, first.launches, 0}));
  b.k_scales.data = nullptr;
  EXPECT_EQ(plan.run(b, workspace).code(), ErrorCode::invalid_argument);
  b = a;
  b.q_scales.granularity = Granularity::row;
  EXPECT_EQ(plan.run(b, workspace).code(), ErrorCode::invalid_argument);
}

// While one thread waits for the compiler, others plan other problems.
TEST_F(HostPath, PlanningWaitsForNoOtherProblem) {
  if (embedded_kernels().size() == 0) GTEST_SKIP() << "built without shipped kernels";
  void* const library = dlopen(OCTAVO_FAKE_NVRTC, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto hold = reinterpret_cast<void (*)(int)>(dlsym(library, "fake_nvrtc_hold"));
  const auto compiling = reinterpret_cast<int (*)()>(dlsym(library, "fake_nvrtc_compiling"));
  ASSERT_TRUE(hold != nullptr && compiling != nullptr);
  Arguments unshipped = arguments(448, 512);
  unshipped.out.dtype = DType::f32;
  const Arguments shipped = arguments(448, 512);
  std::atomic<int> failed = 0;
  hold(1);
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)  // the second waits for the first
    threads.emplace_back([&] { failed += attention(unshipped, {}, kGpu).ok() ? 0 : 1; });
  while (compiling() == 0) std::this_thread::yield();
  std::future<Status> other =
      std::async(std::launch::async, [&] { return attention(shipped, {}, kGpu); });
  const bool finished = other.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
  EXPECT_EQ(compiling(), 1) << "one thread compiles the kernel of one problem";
  hold(0);
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(finished);
  EXPECT_TRUE(other.get().ok());
  EXPECT_EQ(failed, 0);
}

TEST_F(HostPath, EveryThreadLaunchesItsOwnArguments) {
  constexpr int kThreads = 8, kRuns = 200;
  const Plan plan = planned(arguments(512, 512));
  std::atomic<int> failed = 0;
  const int before = launches();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRuns; ++i) {
        const Arguments a = arguments(512, 64 + 8 * ((t + i) % 40));
        const Status status = i % 2 == 0 ? plan.run(a) : attention(a, {}, kGpu);
        failed += status.ok() ? 0 : 1;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(launches() - before, kThreads * kRuns);
}

}  // namespace
}  // namespace octavo
