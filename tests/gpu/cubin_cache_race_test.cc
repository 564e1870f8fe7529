// SPDX-License-Identifier: Apache-2.0
// The cache between processes: concurrent writers and readers, and a writer that is killed.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "gpu/cache_kernels.h"
#include "gpu/jit/cubin_cache.h"
#include "gpu/jit/kernel_archive.h"
#include "gpu/jit/nvrtc.h"
#include "gpu/temporary_directory.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

// Runs `work` in a child; its exit code is what work returned.
template <class Work>
pid_t in_child(Work&& work) {
  const pid_t child = fork();
  if (child == 0) _exit(work());
  return child;
}

int exit_code(pid_t child) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int entries(const CubinCache& cache) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(cache.root())) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(".tmp-")) ++count;
  }
  return count;
}

TEST(CubinCacheRace, ThirtyTwoProcessesStoreOneKey) {
  for (int round = 0; round < 5; ++round) {
    const TemporaryDirectory directory;
    const CubinCache cache(directory.path() + "/cache");
    int gate[2];
    ASSERT_EQ(pipe(gate), 0);
    std::vector<pid_t> children;
    children.reserve(32);
    for (int i = 0; i < 32; ++i) {
      children.push_back(in_child([&] {
        close(gate[1]);
        char byte = 0;
        if (read(gate[0], &byte, 1) != 0) return 9;  // all start when the other end is closed
        const auto compile = []() -> Result<CompiledKernel> { return fake_kernel("raced"); };
        const Result<Cached> got = get_or_compile(cache, fake_key("raced"), compile);
        if (!got.ok()) return 1;
        if (!got->note.empty()) return 2;
        if (got->kernel.image != fake_kernel("raced").image) return 3;
        return cache.load(fake_key("raced")).ok() ? 0 : 4;
      }));
    }
    close(gate[0]);
    close(gate[1]);
    for (const pid_t child : children) EXPECT_EQ(exit_code(child), 0);
    // One complete entry, and nothing left of the writers that lost.
    EXPECT_EQ(std::distance(fs::directory_iterator(cache.root()), fs::directory_iterator()), 1);
  }
}

TEST(CubinCacheRace, ProcessesCompileOneKey) {
  if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  const TemporaryDirectory directory;
  const CubinCache cache(directory.path());
  Sm80ForwardConfig config;
  config.head_dim = config.block_m = config.block_n = 16;
  config.warps_m = config.stages = 1;
  const KernelSource source = kernel_source(config);
  const std::string key = cache_key(source, *nvrtc_version());
  std::vector<pid_t> children;
  children.reserve(8);
  for (int i = 0; i < 4; ++i) {
    children.push_back(in_child([&] {
      const Result<Cached> got = get_or_compile(cache, key, [&] { return compile(source); });
      return got.ok() && got->note.empty() && cache.load(key).ok() ? 0 : 1;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(exit_code(child), 0);
  EXPECT_EQ(entries(cache), 1);
}

// Whenever the writer dies, an entry is complete or absent. The delays cover a whole store, which
// takes about a millisecond; on a busy machine some children have not begun one by then, and every
// tenth lives until it has stored an entry.
TEST(CubinCacheRace, WriterKilledAtAnyMoment) {
  const TemporaryDirectory directory;
  const CubinCache cache(directory.path());
  std::mt19937 random(7);
  int there = 0, killed = 0;
  for (int i = 0; i < 150; ++i) {
    const pid_t child = in_child([&] {
      for (int n = 0;; ++n) {
        const std::string name = std::to_string(i) + "-" + std::to_string(n);
        const Status status = cache.store(fake_key(name), fake_kernel(name, 30000));
        if (!status.ok()) return 1;
      }
    });
    const std::string first = fake_key(std::to_string(i) + "-0");
    while (i % 10 == 0 && !cache.load(first).ok()) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 6000));
    kill(child, SIGKILL);
    killed += exit_code(child) == -SIGKILL;
  }
  EXPECT_EQ(killed, 150);
  for (const auto& entry : fs::directory_iterator(cache.root())) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".tmp-")) continue;
    ++there;
    const Result<CompiledKernel> loaded = cache.load(name);
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
  }
  EXPECT_GT(there, 0);
  EXPECT_TRUE(cache.remove("").ok());
  EXPECT_TRUE(fs::is_empty(cache.root()));
}

// Writers store and remove two keys while readers load them: a reader gets the kernel or nothing.
TEST(CubinCacheRace, ReadersSeeWholeEntriesOrNone) {
  const TemporaryDirectory directory;
  const CubinCache cache(directory.path());
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(1500);
  std::vector<pid_t> children;
  children.reserve(8);
  for (int i = 0; i < 3; ++i) {
    children.push_back(in_child([&, i] {
      const std::string name = i % 2 == 0 ? "even" : "odd";
      while (std::chrono::steady_clock::now() < until) {
        if (!cache.store(fake_key(name), fake_kernel(name)).ok()) return 1;
        if (i == 2 && !cache.remove("").ok()) return 2;
      }
      return 0;
    }));
  }
  for (int i = 0; i < 4; ++i) {
    children.push_back(in_child([&, i] {
      const std::string name = i % 2 == 0 ? "even" : "odd";
      const CompiledKernel kernel = fake_kernel(name);
      int loads = 0;
      while (std::chrono::steady_clock::now() < until) {
        const Result<CompiledKernel> loaded = cache.load(fake_key(name));
        if (loaded.ok() && loaded->image != kernel.image) return 3;
        // An entry may vanish while it is read, and reappear, but is never another kernel.
        loads += loaded.ok();
      }
      return loads > 0 ? 0 : 4;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(exit_code(child), 0);
}

TEST(CubinCacheRace, EveryThreadGetsTheKernel) {
  const TemporaryDirectory directory;
  const CubinCache cache(directory.path());
  std::vector<std::thread> threads;
  threads.reserve(8);
  std::atomic<int> good{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const auto compile = []() -> Result<CompiledKernel> { return fake_kernel("threads"); };
      const Result<Cached> got = get_or_compile(cache, fake_key("threads"), compile);
      good += got.ok() && got->note.empty();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 8);
  EXPECT_EQ(std::distance(fs::directory_iterator(cache.root()), fs::directory_iterator()), 1);
}

}  // namespace
}  // namespace octavo
