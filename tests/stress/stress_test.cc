// SPDX-License-Identifier: Apache-2.0
// Everything at once, for a minute or $OCTAVO_STRESS_SECONDS: threads that call the library with
// known and new problems, so that plans are made and evicted; backward passes and KV caches;
// children of fork() that do the same; thread counts and affinities that change; files; and
// allocations that fail at every site. Every
// call returns the right bits, or out_of_memory and nothing written; nothing hangs, and the memory
// in use does not grow.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "attention/call.h"
#include "octavo/kv_cache.hpp"
#include "stress/failing_sites.h"

namespace octavo {
namespace {

using Clock = std::chrono::steady_clock;
using test::Call;
using test::EnterLibrary;

constexpr int kThreads = 4;
constexpr int kRoundSeconds = 3;
// Without any progress for so long, something hangs. A busy machine is slow, but not this slow.
constexpr int kHangSeconds = 300;

// Calls the library. Copies of its results are the test's own allocations.
template <class Function>
auto in_library(const Function& function) {
  const EnterLibrary inside;
  return function();
}

struct Shape {
  std::int64_t batch, heads_q, heads_kv, seqlen_q, seqlen_kv, head_dim;
  Options options;
};

std::vector<Shape> shapes() {
  const auto with = [](Precision precision, Causal causal) {
    Options options;
    options.precision = precision;
    options.causal = causal;
    return options;
  };
  Options searched = with(Precision::fp8, Causal::none);
  searched.quantization.rule = ScaleRule::least_squares;  // allocates in the worker threads
  searched.quantization.smooth_k = true;
  return {{1, 1, 1, 2, 4, 8, {}},
          {2, 4, 2, 70, 90, 16, with(Precision::native, Causal::top_left)},
          {1, 2, 2, 130, 90, 33, with(Precision::native, Causal::none)},
          {1, 6, 1, 40, 200, 64, with(Precision::fp16, Causal::bottom_right)},
          {3, 2, 1, 20, 30, 40, with(Precision::int8, Causal::none)},
          {1, 2, 1, 64, 64, 128, with(Precision::fp8, Causal::top_left)},
          {1, 2, 2, 33, 65, 24, searched}};
}

// The gradients of a forward pass, with its output as dO.
struct Gradients {
  std::vector<float> dq, dk, dv;
  BackwardArguments arguments;

  explicit Gradients(const Call& c)
      : dq(c.q.size(), -7.0f), dk(c.k.size(), -7.0f), dv(c.v.size(), -7.0f) {
    const auto like = [](const ConstTensor& t, std::vector<float>& data) {
      return Tensor(data.data(), DType::f32, t.shape, t.stride);
    };
    const Arguments& a = c.arguments;
    arguments.q = a.q, arguments.k = a.k, arguments.v = a.v;
    arguments.out = arguments.dout = a.out, arguments.lse = a.lse;
    arguments.dq = like(a.q, dq), arguments.dk = like(a.k, dk), arguments.dv = like(a.v, dv);
  }
  bool operator==(const Gradients& other) const {
    return dq == other.dq && dk == other.dk && dv == other.dv;
  }
};

// Attention over a cache of its own: two appends, the second to a fork.
Status run_cache(const Call& call) {
  const KvCacheOptions options{.pages = 6,
                               .page_size = 16,
                               .heads = 2,
                               .head_dim = 16,
                               .dtype = DType::e4m3,
                               .max_batch = 2};
  Result<KvCache> cache = in_library([&] { return KvCache::create(options); });
  if (!cache.ok()) return cache.status();
  Arguments a = call.arguments;
  for (int step = 0; step < 2; ++step) {
    const Result<std::int64_t> sequence =
        in_library([&] { return step == 0 ? cache->add_sequence() : cache->fork(0); });
    if (!sequence.ok()) return sequence.status();
    Status status = in_library([&] { return cache->select({&*sequence, 1}); });
    if (status.ok()) status = in_library([&] { return cache->append(a.k, a.v); });
    if (!status.ok()) return status;
  }
  cache->set_arguments(a);
  return in_library([&] { return attention(a); });
}

// The counts of all threads and, through the pipe of exit codes, of the children.
struct Tally {
  std::atomic<std::int64_t> right{0}, out_of_memory{0}, children{0};
  std::atomic<std::int64_t> progress{0};
  std::atomic<int> wrong{0};
};

class Work {
 public:
  Work() {
    for (const Shape& s : shapes()) {
      expected_.push_back(call_of(s));
      if (!attention(expected_.back()->arguments, s.options).ok()) std::abort();
    }
    gradients_ = std::make_unique<Gradients>(*expected_[kBackward]);
    const Options& options = shapes()[kBackward].options;
    if (!attention_backward(gradients_->arguments, options).ok()) std::abort();
    cached_ = cache_call();
    if (!run_cache(*cached_).ok()) std::abort();
  }

  // One random operation. Returns false, with a message, where a promise is broken.
  bool step(std::mt19937_64& random, Tally& tally) {
    ++tally.progress;
    switch (random() % 16) {
      case 0:
        return count(tally, set_threads(static_cast<int>(random() % 6)), true, "set_cpu_threads");
      case 1:
        change_affinity(random());
        return true;
      case 2:
        return calibrate(tally);
      case 3:
        return differentiate(tally);
      case 4:
        return cache(tally);
      case 5:
      case 6:
        return run_plan(random() % expected_.size(), tally);
      default:
        return attend(random() % expected_.size(), random() % 2 == 0, tally);
    }
  }

 private:
  static constexpr std::size_t kBackward = 1;  // the shape of backward passes

  static std::unique_ptr<Call> cache_call() { return std::make_unique<Call>(1, 4, 2, 3, 21, 16); }
  static std::unique_ptr<Call> call_of(const Shape& s) {
    return std::make_unique<Call>(s.batch, s.heads_q, s.heads_kv, s.seqlen_q, s.seqlen_kv,
                                  s.head_dim);
  }
  static Status set_threads(int threads) {
    return in_library([&] { return set_cpu_threads(threads); });
  }
  static void change_affinity(std::uint64_t random) {
    cpu_set_t set;
    CPU_ZERO(&set);
    const auto cores = std::max(1U, std::thread::hardware_concurrency());
    for (unsigned core = 0; core < cores; ++core)
      if (random >> core % 64 & 1) CPU_SET(core, &set);
    (void)sched_setaffinity(0, sizeof set, &set);  // refused if empty: the old one stays
  }

  static bool count(Tally& tally, const Status& status, bool intact, const char* what) {
    if (status.ok() && intact) return ++tally.right, true;
    if (status.code() == ErrorCode::out_of_memory && intact) return ++tally.out_of_memory, true;
    std::fprintf(stderr, "stress: %s: %s%s\n", what, status.ok() ? "ok" : status.what(),
                 intact ? "" : ", with wrong bits");
    return false;
  }
  // Right bits after success, and nothing written after a failure.
  bool intact(const Call& call, std::size_t shape, const Status& status) const {
    if (!status.ok()) return call.untouched();
    return call.out == expected_[shape]->out && call.lse == expected_[shape]->lse;
  }

  bool attend(std::size_t shape, bool is_new, Tally& tally) {
    const Shape s = shapes()[shape];
    const std::unique_ptr<Call> call = call_of(s);
    Options options = s.options;
    // A window beyond all keys has no effect but needs a new plan.
    if (is_new) options.window_left = 1'000'000 + next_++;
    const Status status = in_library([&] { return attention(call->arguments, options); });
    return count(tally, status, intact(*call, shape, status), "attention");
  }

  bool run_plan(std::size_t shape, Tally& tally) {
    const Shape s = shapes()[shape];
    const std::unique_ptr<Call> call = call_of(s);
    const auto run = [&]() -> Status {
      const Result<Problem> problem =
          in_library([&] { return problem_of(call->arguments, s.options); });
      if (!problem.ok()) return problem.status();
      const Result<Plan> made = in_library([&] { return plan(*problem); });
      if (!made.ok()) return made.status();
      const Result<Buffer> memory =
          in_library([&] { return Buffer::make({}, made->workspace_bytes()); });
      if (!memory.ok()) return memory.status();
      return in_library([&] {
        return made->run(call->arguments, {memory->data(), memory->bytes()});
      });
    };
    const Status status = run();
    return count(tally, status, intact(*call, shape, status), "plan and run");
  }

  bool differentiate(Tally& tally) {
    Gradients found(*expected_[kBackward]);
    const Gradients untouched(*expected_[kBackward]);
    const Options options = shapes()[kBackward].options;
    const Status status = in_library([&] { return attention_backward(found.arguments, options); });
    return count(tally, status, found == (status.ok() ? *gradients_ : untouched), "backward");
  }

  bool cache(Tally& tally) {
    const std::unique_ptr<Call> call = cache_call();
    const Status status = run_cache(*call);
    const bool right = call->out == cached_->out && call->lse == cached_->lse;
    return count(tally, status, status.ok() ? right : call->untouched(), "KV cache");
  }

  bool calibrate(Tally& tally) {
    const std::string path = testing::TempDir() + "octavo_stress_" + std::to_string(::getpid());
    const Call& call = *expected_[1];
    Calibration calibration;
    Status status =
        in_library([&] { return calibration.observe("k", call.arguments.k, DType::e4m3, {}); });
    if (status.ok()) status = in_library([&] { return calibration.save(path); });
    if (status.ok()) status = in_library([&] { return Calibration::load(path); }).status();
    // Other threads may save to the same path: a reader sees a whole file all the same.
    return count(tally, status, true, "calibration");
  }

  std::vector<std::unique_ptr<Call>> expected_;
  std::unique_ptr<Gradients> gradients_;
  std::unique_ptr<Call> cached_;
  std::atomic<std::int64_t> next_ = 0;
};

// True if a child does a few operations right.
bool child_is_right(Work& work, std::uint64_t seed) {
  constexpr int kSteps = 5;
  const pid_t child = fork();
  if (child == 0) {
    alarm(kHangSeconds);  // ends a child that hangs
    std::mt19937_64 random(seed);
    Tally tally;
    for (int i = 0; i < kSteps; ++i)
      if (!work.step(random, tally)) _exit(1);
    _exit(0);
  }
  int status = 0;
  if (child < 0) return true;  // the system has no process left
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  std::fprintf(stderr, "stress: a child ended with status %#x\n", static_cast<unsigned>(status));
  return false;
}

// Ends the program if the threads stop making progress: a test that hangs has no other end.
class Watchdog {
 public:
  explicit Watchdog(const Tally& tally)
      : thread_([this, &tally] {
          test::in_library = false;
          std::int64_t before = -1;
          int idle = 0;
          while (!done_) {
            std::this_thread::sleep_for(std::chrono::seconds(1));
            idle = tally.progress == before ? idle + 1 : 0;
            before = tally.progress;
            if (idle < kHangSeconds) continue;
            std::fprintf(stderr, "stress: no progress for %d s\n", kHangSeconds);
            std::abort();
          }
        }) {}
  ~Watchdog() {
    done_ = true;
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

// New threads work until `end`, while this one forks.
void run_round(Work& work, Tally& tally, std::uint64_t seed, Clock::time_point end) {
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&work, &tally, end, seed, t] {
      test::in_library = false;
      std::mt19937_64 random(seed * kThreads + static_cast<std::uint64_t>(t));
      while (Clock::now() < end && tally.wrong == 0)
        if (!work.step(random, tally)) ++tally.wrong;
      test::in_library = true;  // the destructors of its thread's state belong to the library
    });
  for (std::uint64_t n = 0; Clock::now() < end && tally.wrong == 0; ++n) {
    if (!child_is_right(work, seed * 1000 + n)) ++tally.wrong;
    ++tally.children;
  }
  for (std::thread& thread : threads) thread.join();
}

std::size_t bytes_in_use() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST(Stress, NothingHangsNothingIsWrongAndTheMemoryStaysFlat) {
  ASSERT_NE(nice(10), -1);  // other tests may run at the same time
  const char* const seconds = std::getenv("OCTAVO_STRESS_SECONDS");
  const auto end =
      Clock::now() + std::chrono::seconds(seconds != nullptr ? std::atoi(seconds) : 60);
  test::in_library = false;
  Work work;
  Tally tally;
  const Watchdog watchdog(tally);
  test::injecting = true;
  std::size_t warm = 0, last = 0;
  constexpr int kWarmRounds = 4;
  for (int round = 0; round < kWarmRounds + 1 || Clock::now() < end; ++round) {
    run_round(work, tally, static_cast<std::uint64_t>(round + 1),
              Clock::now() + std::chrono::seconds(kRoundSeconds));
    ASSERT_EQ(tally.wrong, 0);
    last = bytes_in_use();
    if (round < kWarmRounds) warm = std::max(warm, last);
  }
  test::injecting = false;
  int seen = 0;
  for (const test::Site& site : test::sites) {
    seen += site.address != 0 ? 1 : 0;
    EXPECT_TRUE(site.address == 0 || site.failures > 0);
  }
  std::printf(
      "%ld right, %ld out of memory, %ld children, %d sites failed, %zu bytes in use, %zu after %d "
      "rounds\n",
      static_cast<long>(tally.right), static_cast<long>(tally.out_of_memory),
      static_cast<long>(tally.children), seen, last, warm, kWarmRounds);
  EXPECT_GT(seen, 30);
  EXPECT_GT(tally.right, tally.out_of_memory / 100);
  EXPECT_GT(tally.children, 0);
  constexpr std::size_t kMostGrowth = 512 << 10;
  EXPECT_LT(last, warm + kMostGrowth);
  // After all that, the library is as good as new.
  ASSERT_TRUE(set_cpu_threads(0).ok());
  std::mt19937_64 random(7);
  Tally after;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(work.step(random, after));
  EXPECT_EQ(after.out_of_memory, 0);
}

}  // namespace
}  // namespace octavo
