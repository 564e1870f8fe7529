// The CPU backend's threads: started once, asleep between calls.
#pragma once

#include <cstdint>
#include <functional>
#include <type_traits>

namespace octavo::cpu {

// Cores this process may use.
int core_count();

using TaskBody = void (*)(void* context, std::int64_t task, int worker);

// Calls body(context, task, worker) once for every task of [0, tasks), on at most `workers`
// threads with worker numbers below that, the caller being number 0; returns when all are done.
// Tasks are taken in order by whoever is free. One call at a time has the threads; a call from
// inside a task or beside another runs all its tasks on its own thread, so neither can deadlock.
// Where the system refuses threads, those that there are do the work. What a task throws reaches
// the caller when all workers are done; tasks that had not begun by then are left out.
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

// Calls work(thread) on so many threads of its own, of which the caller's is number 0; returns when
// all are done, and throws what one of them threw. Where the system refuses threads there are
// fewer, so `work` must take what is left to do from a counter. For work that itself calls the
// backend.
void on_own_threads(int threads, const std::function<void(int)>& work);

}  // namespace octavo::cpu
