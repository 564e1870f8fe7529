// SPDX-License-Identifier: Apache-2.0
// Measures the machine's rate of fp32 multiply-adds, with which the backend's speed is compared.
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

// A task is long enough (about 0.5 ms per thread) to hide the cost of scheduling it.
std::int64_t rounds_per_task(const Kernels& in_use) {
  std::int64_t rounds = 1 << 12;
  for (;; rounds *= 2) {
    const auto start = Clock::now();
    in_use.multiply_adds(rounds);
    if (seconds_since(start) > 5e-4) return rounds;
  }
}

}  // namespace

FmaMeter::FmaMeter() : rounds_(rounds_per_task(kernels())) {}

double FmaMeter::gflops(double seconds) const {
  const Kernels& in_use = kernels();
  const int threads = thread_count();
  const std::int64_t tasks = std::int64_t{4} * threads;
  const double operations = in_use.multiply_adds(1) * static_cast<double>(rounds_ * tasks);
  double done = 0;
  const auto start = Clock::now();
  do {
    parallel_for(tasks, threads, [&](std::int64_t, int) { in_use.multiply_adds(rounds_); });
    done += operations;
  } while (seconds_since(start) < seconds);
  return done / seconds_since(start) * 1e-9;
}

}  // namespace octavo::cpu
