// SPDX-License-Identifier: Apache-2.0
// The thread pool. Threads sleep on a condition variable until a job needs one more worker.
#include "cpu/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "cpu/attention.h"
#include "numeric/fork_safe.h"

namespace octavo::cpu {
namespace {

class ThreadPool {
 public:
  void run(std::int64_t tasks, int workers, TaskBody body, void* context);

 private:
  struct Job {
    std::int64_t tasks = 0;
    TaskBody body = nullptr;
    void* context = nullptr;
  };

  void start_threads(int wanted);
  void work();
  void take_tasks(const Job& job, int worker);
  void finish(std::exception_ptr& thrown);

  std::atomic<bool> busy_{false};
  std::atomic<std::int64_t> next_task_{0};
  std::mutex mutex_;
  std::condition_variable seat_free_, all_done_;
  Job job_;
  int threads_ = 0;  // started so far
  int next_worker_ = 1;
  int last_worker_ = 0;  // seats are the worker numbers from next to last
  int running_ = 0;
  std::exception_ptr thrown_;  // by a task of the job, the first one
};

// A task that throws ends the job: tasks that have not started are skipped, and the caller gets the
// exception when every worker has finished.
void ThreadPool::take_tasks(const Job& job, int worker) {
  try {
    for (;;) {
      const std::int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
      if (task >= job.tasks) return;
      job.body(job.context, task, worker);
    }
  } catch (...) {
    next_task_.store(job.tasks, std::memory_order_relaxed);
    const std::lock_guard lock(mutex_);
    if (thrown_ == nullptr) thrown_ = std::current_exception();
  }
}

void ThreadPool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    seat_free_.wait(lock, [this] { return next_worker_ <= last_worker_; });
    const int worker = next_worker_++;
    const Job job = job_;
    ++running_;
    lock.unlock();
    take_tasks(job, worker);
    lock.lock();
    if (--running_ == 0) all_done_.notify_one();
  }
}

// Threads are detached and the pool is never destroyed: joining at exit would hang in a forked
// child, which does not have the threads. If no more threads can be created, fewer do the work.
void ThreadPool::start_threads(int wanted) {
  try {
    for (; threads_ < wanted; ++threads_) std::thread([this] { work(); }).detach();
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {
  }
}

void ThreadPool::run(std::int64_t tasks, int workers, TaskBody body, void* context) {
  const Job job{tasks, body, context};
  workers = static_cast<int>(std::min<std::int64_t>(workers, tasks));
  if (workers <= 1 || busy_.exchange(true, std::memory_order_acquire)) {
    for (std::int64_t task = 0; task < tasks; ++task) body(context, task, 0);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    start_threads(workers - 1);
    next_task_.store(0, std::memory_order_relaxed);
    job_ = job;
    next_worker_ = 1;
    last_worker_ = workers - 1;
  }
  seat_free_.notify_all();
  take_tasks(job, 0);
  std::exception_ptr thrown;
  finish(thrown);
  if (thrown != nullptr) std::rethrow_exception(thrown);
}

// Waits until all workers of the job have finished. Then the threads are free for the next job.
void ThreadPool::finish(std::exception_ptr& thrown) {
  {
    std::unique_lock lock(mutex_);
    last_worker_ = 0;  // a worker that has not woken up by now has nothing left to do
    all_done_.wait(lock, [this] { return running_ == 0; });
    std::swap(thrown, thrown_);
  }
  busy_.store(false, std::memory_order_release);
}

// A child of fork() has none of the threads and starts its own.
constinit PerProcess<ThreadPool> pool;

std::atomic<int> requested_threads{0};

}  // namespace

int core_count() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // This fails beyond 1024 cores; then count all cores of the machine.
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void on_own_threads(int threads, const std::function<void(int)>& work) {
  std::mutex mutex;
  std::exception_ptr thrown;
  const auto guarded = [&](int thread) {
    try {
      work(thread);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (thrown == nullptr) thrown = std::current_exception();
    }
  };
  std::vector<std::thread> helpers;
  try {
    for (int t = 1; t < threads; ++t) helpers.emplace_back(guarded, t);
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {
  }
  guarded(0);
  for (std::thread& helper : helpers) helper.join();
  if (thrown != nullptr) std::rethrow_exception(thrown);
}

void run_tasks(std::int64_t tasks, int workers, TaskBody body, void* context) {
  pool.get().run(tasks, workers, body, context);
}

int thread_count() {
  const int requested = requested_threads.load(std::memory_order_relaxed);
  return requested > 0 ? requested : core_count();
}

void set_thread_count(int threads) {
  requested_threads.store(std::max(threads, 0), std::memory_order_relaxed);
}

}  // namespace octavo::cpu
