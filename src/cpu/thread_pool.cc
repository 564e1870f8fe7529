// Workers sleep on a condition variable until a job has a free seat for them.
#include "cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "cpu/attention.h"

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

  std::atomic<bool> busy_{false};
  std::atomic<std::int64_t> next_task_{0};
  std::mutex mutex_;
  std::condition_variable seat_free_, all_done_;
  Job job_;
  int threads_ = 0;  // started so far
  int next_worker_ = 1;
  int last_worker_ = 0;  // seats are the worker numbers from next to last
  int running_ = 0;
};

void ThreadPool::take_tasks(const Job& job, int worker) {
  for (;;) {
    const std::int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task >= job.tasks) return;
    job.body(job.context, task, worker);
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

// Threads are detached and the pool is never destroyed: joining at exit would hang a child that a
// fork left without them. A system that refuses more threads gets its work done by fewer.
void ThreadPool::start_threads(int wanted) {
  try {
    for (; threads_ < wanted; ++threads_) std::thread([this] { work(); }).detach();
  } catch (const std::system_error&) {
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
  {
    std::unique_lock lock(mutex_);
    last_worker_ = 0;  // whoever has not woken up by now has nothing left to do
    all_done_.wait(lock, [this] { return running_ == 0; });
  }
  busy_.store(false, std::memory_order_release);
}

std::atomic<ThreadPool*> pool{nullptr};

// After a fork the child has none of the threads, and perhaps a locked mutex: it starts anew.
ThreadPool& current_pool() {
  static std::once_flag registered;
  std::call_once(registered, [] {
    pthread_atfork(nullptr, nullptr, [] { pool.store(nullptr, std::memory_order_relaxed); });
  });
  ThreadPool* found = pool.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  auto* fresh = new ThreadPool;
  if (pool.compare_exchange_strong(found, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *found;
}

std::atomic<int> requested_threads{0};

}  // namespace

int core_count() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // Fails beyond 1024 cores; then all that the machine has.
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void run_tasks(std::int64_t tasks, int workers, TaskBody body, void* context) {
  current_pool().run(tasks, workers, body, context);
}

int thread_count() {
  const int requested = requested_threads.load(std::memory_order_relaxed);
  return requested > 0 ? requested : core_count();
}

void set_thread_count(int threads) {
  requested_threads.store(std::max(threads, 0), std::memory_order_relaxed);
}

}  // namespace octavo::cpu
