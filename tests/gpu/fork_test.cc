// SPDX-License-Identifier: Apache-2.0
// fork() and a GPU, with a fake driver: CUDA does not survive fork(), so a child gets an error
// sentence for its parent's GPU, and neither hangs nor calls the driver.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "attention/call.h"
#include "gpu/jit/nvrtc.h"
#include "octavo/kv_cache.hpp"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

constexpr Device kGpu{Device::Kind::cuda, 0};

class GpuForks : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    void* const library = dlopen(OCTAVO_FAKE_CUDA "/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    live_bytes = reinterpret_cast<std::size_t (*)()>(dlsym(library, "fake_cuda_live_bytes"));
    ASSERT_NE(live_bytes, nullptr);
    setenv("FAKE_CUDA_ARCH", "90", 1);
    setenv("OCTAVO_NVRTC", OCTAVO_FAKE_NVRTC, 1);
    setenv("OCTAVO_CACHE_DIR", "/proc/octavo", 1);
  }

  // The memory is never read: only the addresses matter.
  static Arguments arguments() {
    const auto place = [](std::uintptr_t i) {
      return reinterpret_cast<void*>((1 << 20) + (i << 32));
    };
    Arguments a;
    a.q = Tensor::bhsd(place(1), DType::f16, 2, 8, 64, 64);
    a.k = Tensor::bhsd(place(2), DType::f16, 2, 8, 64, 64);
    a.v = Tensor::bhsd(place(3), DType::f16, 2, 8, 64, 64);
    a.out = Tensor::bhsd(place(4), DType::f16, 2, 8, 64, 64);
    return a;
  }

  // Runs `work` in a child; it returns an error description, "" for none.
  template <class Work>
  static std::string in_child(const Work& work) {
    int ends[2];
    if (pipe(ends) != 0) return "no pipe";
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);  // ends a child that hangs
      const std::string wrong = work();
      const bool written =
          write(ends[1], wrong.data(), wrong.size()) == static_cast<ssize_t>(wrong.size());
      _exit(written ? 0 : 1);
    }
    close(ends[1]);
    std::string wrong(4096, '\0');
    const ssize_t got = read(ends[0], wrong.data(), wrong.size());
    close(ends[0]);
    wrong.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    int status = 0;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
      return wrong + " (the child was ended)";
    return wrong;
  }

  // "" if the status is the error sentence about fork().
  static std::string refused(std::string_view what, const Status& status) {
    if (status.code() == ErrorCode::device_error &&
        status.message().find("before fork()") != std::string::npos)
      return "";
    return std::string(what) + ": '" + status.message() + "'; ";
  }
  static std::string cpu_works() {
    test::Call call(1, 2, 2, 30, 30, 8);
    const Status status = attention(call.arguments);
    return status.ok() ? "" : "cpu: " + status.message();
  }

  static inline std::size_t (*live_bytes)() = nullptr;
};

TEST_F(GpuForks, ChildCannotUseTheParentsGpu) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer does not follow threads started after a fork";
#endif
  // Opened only by the child: it works there, and later in the parent.
  EXPECT_EQ(in_child([] { return attention(arguments(), {}, kGpu).message(); }), "");
  std::optional<Buffer> buffer = Buffer::make(kGpu, 1000).value();
  const Plan made = plan(problem_of(arguments()).value(), kGpu).value();
  ASSERT_EQ(attention(arguments(), {}, kGpu).message(), "");
  // Unaligned rows need kernels that are loaded with the first such run.
  Arguments unaligned = arguments();
  unaligned.q.data = static_cast<const std::byte*>(unaligned.q.data) + 2;
  EXPECT_EQ(in_child([&] {
              std::string wrong = refused("run", made.run(arguments()));
              wrong += refused("unaligned", made.run(unaligned));
              wrong += refused("attention", attention(arguments(), {}, kGpu));
              wrong += refused("attention", attention(arguments(), {.window_left = 3}, kGpu));
              wrong += refused("plan", plan(made.problem(), kGpu).status());
              wrong += refused("buffer", Buffer::make(kGpu, 100).status());
              wrong += refused("upload", buffer->upload(&wrong, 4));
              wrong += refused("synchronize", synchronize(kGpu));
              if (made.explain().kernel.empty()) wrong += "explain";
              for (const DeviceInfo& info : devices())
                if (info.device == kGpu && info.available) wrong += "the GPU is available";
              if (parse_device("auto").value() != Device{}) wrong += "auto is the GPU";
              buffer.reset();
              if (live_bytes() != 1000) wrong += "the driver was called";
              return wrong + cpu_works();
            }),
            "");
  EXPECT_EQ(attention(arguments(), {}, kGpu).message(), "");
}

TEST_F(GpuForks, ChildCannotUseTheParentsKvCache) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer does not follow threads started after a fork";
#endif
  std::optional<KvCache> cache =
      KvCache::create({.pages = 8, .heads = 2, .head_dim = 64, .max_batch = 2}, kGpu).value();
  ASSERT_EQ(cache->add_sequence().value(), 0);
  ASSERT_EQ(cache->select({{0}}).message(), "");
  const Tensor rows = Tensor::bhsd(arguments().out.data, DType::f16, 1, 2, 3, 64);
  Tensor others = rows;
  others.data = static_cast<std::byte*>(rows.data) + 2 * 3 * 64 * 2;
  ASSERT_EQ(cache->append(rows, rows).message(), "");
  const std::size_t bytes = live_bytes();
  EXPECT_EQ(in_child([&] {
              std::string wrong = refused("append", cache->append(rows, rows));
              wrong += refused("reserve", cache->reserve(100));
              wrong += refused("select", cache->select({{0}}));
              wrong += refused("read", cache->read(0, rows, others));
              wrong += refused("free_sequence", cache->free_sequence(0));
              wrong += refused("create", KvCache::create(cache->options(), kGpu).status());
              if (cache->length(0).value() != 3) wrong += "the length has changed; ";
              cache.reset();
              if (live_bytes() != bytes) wrong += "the driver was called";
              return wrong;
            }),
            "");
  EXPECT_EQ(cache->append(rows, rows).message(), "");
}

TEST_F(GpuForks, ChildForkedDuringACompilationDoesNotCompile) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer does not follow threads started after a fork";
#endif
  void* const library = dlopen(OCTAVO_FAKE_NVRTC, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  auto* const hold = reinterpret_cast<void (*)(int)>(dlsym(library, "fake_nvrtc_hold"));
  auto* const compiling = reinterpret_cast<int (*)()>(dlsym(library, "fake_nvrtc_compiling"));
  ASSERT_TRUE(hold != nullptr && compiling != nullptr);
  const ProgramText program{.text = "", .name_expression = "kernel", .options = {}, .ptx = true};
  EXPECT_EQ(in_child([&] { return compile(program).status().message(); }), "");
  hold(1);
  std::thread other([&] { EXPECT_EQ(compile(program).status().message(), ""); });
  while (compiling() == 0) std::this_thread::yield();
  EXPECT_EQ(
      in_child([&] { return compile(program).status().message(); }),
      "NVRTC was compiling when this process was forked, and cannot be used in it; supported: "
      "a fork() while nothing is compiled.");
  hold(0);
  other.join();
  EXPECT_EQ(in_child([&] { return compile(program).status().message(); }), "");
}

TEST_F(GpuForks, ChildrenOfAProcessThatMakesPlansDoNotHang) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer does not follow threads started after a fork";
#elif defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a lock of the address sanitizer's allocator may be taken in the child";
#endif
  ASSERT_EQ(attention(arguments(), {}, kGpu).message(), "");
  std::atomic<bool> done = false;
  std::atomic<std::int64_t> next = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t)
    threads.emplace_back([&] {
      while (!done) (void)attention(arguments(), {.window_left = next++}, kGpu);
    });
  for (int i = 0; i < 30; ++i) {
    const std::int64_t until = next + 5;
    while (next < until) std::this_thread::yield();
    EXPECT_EQ(in_child([] {
                const Options options{.window_left = 1'000'000};
                return refused("attention", attention(arguments(), options, kGpu)) + cpu_works();
              }),
              "");
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace octavo
