// SPDX-License-Identifier: Apache-2.0
// The CPU backend's threads: started once, asleep between calls.
#pragma once

#include <cstdint>
#include <functional>
#include <type_traits>

namespace octavo::cpu {

// Cores this process may use.
int core_count();

using TaskBody = void (*)(void* context, std::int64_t task, int worker);

// Calls body(context, task, worker) once for every task in [0, tasks), on at most `workers`
// threads, and returns when all are done. Threads are numbered from 0, which is the caller. A free
// thread takes the next task in order. Only one call at a time uses the pool. A nested or
// concurrent call runs all its tasks on its own thread, so neither can deadlock. If the system
// cannot create threads, the existing ones do the work. An exception of a task is rethrown when all
// workers are done; tasks that have not started by then are skipped.
void run_tasks(std::int64_t tasks, int workers, TaskBody body, void* context);

template <class Body>
void parallel_for(std::int64_t tasks, int workers, Body&& body) {
  run_tasks(
      tasks, workers,
      [](void* context, std::int64_t task, int worker) {
        (*static_cast<std::remove_reference_t<Body>*>(context))(task, worker);
      },
      &body);
}

// Calls work(thread) on `threads` separate threads, of which the caller is number 0. Returns when
// all are done, and rethrows an exception of one of them. The system may provide fewer threads, so
// `work` must take its tasks from a shared counter. For work that itself calls the backend.
void on_own_threads(int threads, const std::function<void(int)>& work);

}  // namespace octavo::cpu
