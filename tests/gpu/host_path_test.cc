// The host cost of a call beside its launch, counted by a fake driver: one launch, no tensor map
// encoded twice, no allocation, in any thread.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "counting_allocator.h"
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
  static Plan planned(const Arguments& a) { return *plan(*problem_of(a), kGpu); }

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
TEST_F(HostPath, ManyLengths) {
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
