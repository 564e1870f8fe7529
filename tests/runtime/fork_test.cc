// SPDX-License-Identifier: Apache-2.0
// fork() while other threads are inside the library: the child has none of them, and must still be
// able to call the library.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "attention/call.h"

namespace octavo {
namespace {

using test::Call;

// Runs `work` in a child; true if it ends by returning true.
template <class Work>
bool in_child(const Work& work) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // ends a child that hangs
    _exit(work() ? 0 : 1);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
         WEXITSTATUS(status) == 0;
}

class Forks : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the thread sanitizer does not follow threads started after a fork";
#elif defined(__SANITIZE_ADDRESS__)
    GTEST_SKIP() << "a lock of the address sanitizer's allocator may be taken in the child";
#endif
  }
};

// Threads that call the library continuously. Each call has a new problem, so that it creates a
// plan.
class Load {
 public:
  explicit Load(int threads) {
    for (int t = 0; t < threads; ++t)
      threads_.emplace_back([this] {
        Call call(1, 1, 1, 2, 4, 8);
        while (!done_)
          if (!attention(call.arguments, {.window_left = next_++}).ok()) ++failed_;
      });
  }
  ~Load() {
    done_ = true;
    for (std::thread& thread : threads_) thread.join();
    EXPECT_EQ(failed_, 0);
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  // Returns after so many more calls.
  void wait_for(std::int64_t calls) const {
    const std::int64_t until = next_ + calls;
    while (next_ < until) std::this_thread::yield();
  }

 private:
  std::atomic<bool> done_ = false;
  std::atomic<std::int64_t> next_ = 0;
  std::atomic<int> failed_ = 0;
  std::vector<std::thread> threads_;
};

TEST_F(Forks, ChildrenOfAProcessThatMakesPlansRunThemToo) {
  constexpr int kChildren = 40;
  Call expected(2, 4, 2, 70, 90, 16);
  ASSERT_TRUE(attention(expected.arguments).ok());
  int failed = 0;
  Load load(6);
  for (int i = 0; i < kChildren; ++i) {
    load.wait_for(20);
    const bool done = in_child([&] {
      Call call(2, 4, 2, 70, 90, 16);
      if (!attention(call.arguments).ok() || call.out != expected.out) return false;
      // In two threads, and with plans that the parent has not made.
      std::atomic<int> right = 0;
      std::vector<std::thread> threads;
      for (int t = 0; t < 2; ++t)
        threads.emplace_back([&, t] {
          Call own(1, 2, 2, 65, 33, 8);
          const Options options{.window_left = 10'000'000 + t};
          if (attention(own.arguments, options).ok() && !own.untouched()) ++right;
        });
      for (std::thread& thread : threads) thread.join();
      return right == 2;
    });
    if (!done) ++failed;
  }
  EXPECT_EQ(failed, 0) << "of " << kChildren << " children";
}

TEST_F(Forks, ChildKeepsThePlansOfItsParent) {
  Call call(1, 2, 2, 130, 90, 16);
  const Plan plan = octavo::plan(problem_of(call.arguments).value()).value();
  std::vector<std::byte> memory(plan.workspace_bytes());
  ASSERT_TRUE(plan.run(call.arguments, {memory.data(), memory.size()}).ok());
  EXPECT_TRUE(in_child([&] {
    Call again(1, 2, 2, 130, 90, 16);
    return plan.run(again.arguments, {memory.data(), memory.size()}).ok() && again.out == call.out;
  }));
}

TEST_F(Forks, GrandchildRuns) {
  Load load(2);
  load.wait_for(10);
  EXPECT_TRUE(in_child([] {
    Load inner(2);
    inner.wait_for(10);
    return in_child([] {
      Call call(1, 2, 2, 30, 30, 8);
      return attention(call.arguments).ok();
    });
  }));
}

}  // namespace
}  // namespace octavo
