// SPDX-License-Identifier: Apache-2.0
// Threads: every task runs once, no deadlock, and results that do not depend on the thread count.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "case.h"
#include "cpu/thread_pool.h"

namespace octavo::cpu {
namespace {

TEST(CpuThreads, EveryTaskRunsOnceOnAValidWorker) {
  for (const int workers : {1, 2, 7})
    for (const std::int64_t tasks : {0, 1, 2, 6, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks));
      std::atomic<bool> valid = true;
      parallel_for(tasks, workers, [&](std::int64_t task, int worker) {
        ++runs[static_cast<std::size_t>(task)];
        if (worker < 0 || worker >= workers) valid = false;
      });
      for (const auto& count : runs) ASSERT_EQ(count, 1);
      EXPECT_TRUE(valid);
    }
}

TEST(CpuThreads, NestedAndConcurrentCallsFinish) {
  std::atomic<std::int64_t> total = 0;
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round)
        parallel_for(5, 3, [&](std::int64_t, int) {
          parallel_for(4, 2, [&](std::int64_t, int) { ++total; });
        });
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total, 4 * 50 * 5 * 4);
}

// Each task waits for the others, for at most a minute: true if each has its own thread.
bool all_meet(int workers) {
  std::atomic<int> arrived = 0;
  std::atomic<bool> met = true;
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  parallel_for(workers, workers, [&](std::int64_t, int) {
    ++arrived;
    while (arrived < workers && met) {
      if (std::chrono::steady_clock::now() > end) met = false;
      std::this_thread::yield();
    }
  });
  return met;
}

TEST(CpuThreads, ExceptionsOfTasksReachTheCallerAndTheThreadsSurvive) {
  constexpr int kWorkers = 3;
  ASSERT_TRUE(all_meet(kWorkers));
  for (std::int64_t thrower = 0; thrower < 8; ++thrower) {
    std::atomic<int> begun = 0, ended = 0;
    std::string caught;
    try {
      parallel_for(8, kWorkers, [&](std::int64_t task, int) {
        ++begun;
        if (task == thrower) throw std::runtime_error("task " + std::to_string(task));
        ++ended;
      });
    } catch (const std::runtime_error& error) {
      caught = error.what();
    }
    EXPECT_EQ(caught, "task " + std::to_string(thrower));
    EXPECT_EQ(begun, ended + 1) << "a task still runs";
    EXPECT_TRUE(all_meet(kWorkers)) << "after task " << thrower;
  }
}

TEST(CpuThreads, ExceptionOfASeparateThreadReachesTheCaller) {
  for (int thrower = 0; thrower < 3; ++thrower) {
    std::atomic<int> begun = 0;
    EXPECT_THROW(on_own_threads(3,
                                [&](int thread) {
                                  ++begun;
                                  if (thread == thrower) throw std::bad_alloc();
                                }),
                 std::bad_alloc);
    EXPECT_EQ(begun, 3);
  }
}

#if !defined(__SANITIZE_THREAD__)  // tsan does not support threads started after a fork
TEST(CpuThreads, AForkedChildStartsItsOwn) {
  std::atomic<int> before = 0;
  parallel_for(8, 2, [&](std::int64_t, int) { ++before; });
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // a deadlock ends the child, not the test run
    std::atomic<int> runs = 0;
    parallel_for(8, 2, [&](std::int64_t, int) { ++runs; });
    _exit(runs == 8 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}
#endif

TEST(CpuThreads, CountCanBeSetAndReset) {
  set_thread_count(3);
  EXPECT_EQ(thread_count(), 3);
  set_thread_count(0);
  EXPECT_EQ(thread_count(), core_count());
}

TEST(CpuThreads, ResultsDoNotDependOnTheirNumber) {
  for (const Precision precision : {Precision::native, Precision::fp8}) {
    Case c{.batch = 2, .heads_q = 4, .heads_kv = 2, .seqlen_q = 300, .seqlen_kv = 310};
    c.options.causal = Causal::bottom_right;
    c.options.precision = precision;
    c.options.quantization.smooth_k = precision == Precision::fp8;
    std::vector<std::uint8_t> first;
    for (const int threads : {1, 2, 3, 8}) {
      set_thread_count(threads);
      Call call(c);
      ASSERT_EQ(call.run(threads).message(), "");
      if (first.empty()) first = call.out.bytes;
      EXPECT_EQ(call.out.bytes, first) << threads << " threads";
    }
  }
  set_thread_count(0);
}

TEST(CpuThreads, ManyCallersAtOnceGetTheirOwnResults) {
  const Case c{.heads_q = 4, .heads_kv = 2, .seqlen_q = 150, .seqlen_kv = 100};
  Call alone(c);
  ASSERT_TRUE(alone.run().ok());
  std::atomic<int> wrong = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&] {
      for (int round = 0; round < 5; ++round) {
        Call call(c);
        if (!call.run().ok() || call.out.bytes != alone.out.bytes) ++wrong;
      }
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(CpuPeak, IsPositive) { EXPECT_GT(FmaMeter().gflops(1e-3), 0.0); }

}  // namespace
}  // namespace octavo::cpu
