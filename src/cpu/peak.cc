// The machine's fp32 multiply-add rate, measured: what the backend's speed is a fraction of.
#include <algorithm>
#include <chrono>

#include "cpu/attention.h"
#include "cpu/kernels.h"
#include "cpu/thread_pool.h"

namespace octavo::cpu {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A round long enough (about 2 ms a thread) that starting the threads does not show.
std::int64_t rounds_per_task(const Kernels& in_use) {
  std::int64_t rounds = 1 << 14;
  for (;; rounds *= 2) {
    const auto start = Clock::now();
    in_use.multiply_adds(rounds);
    if (seconds_since(start) > 2e-3) return rounds;
  }
}

}  // namespace

double measure_fma_peak_gflops() {
  const Kernels& in_use = kernels();
  const std::int64_t rounds = rounds_per_task(in_use);
  const int threads = thread_count();
  const std::int64_t tasks = std::int64_t{4} * threads;
  const double operations = in_use.multiply_adds(1) * static_cast<double>(rounds * tasks);
  double best = 0;
  const auto start = Clock::now();
  while (seconds_since(start) < 0.2) {
    const auto round_start = Clock::now();
    parallel_for(tasks, threads, [&](std::int64_t, int) { in_use.multiply_adds(rounds); });
    best = std::max(best, operations / seconds_since(round_start));
  }
  return best * 1e-9;
}

}  // namespace octavo::cpu
