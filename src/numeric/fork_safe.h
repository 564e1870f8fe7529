// SPDX-License-Identifier: Apache-2.0
// Global state that remains usable in a child of fork().
//
// A child has only the thread that called fork(). A lock that another thread of the parent held
// stays locked in the child forever: a mutex, a std::once_flag, or the hidden guard of a
// function-local static. So global state is created without a lock: the first thread creates it and
// publishes it with one compare-and-swap; if two threads create it at once, one result is
// discarded.
//
//   MadeOnce<T>    a constant. A child uses its parent's.
//   PerProcess<T>  state with a mutex, a thread or a driver handle. A child creates a new one and
//                  ignores its parent's.
//
// Both are constant-initialised, need no guard themselves, and are never destroyed, so that other
// static objects may use them at exit. The alternative, to lock every mutex before fork() and
// unlock it after, would make fork() wait for the lock holders, for seconds while a kernel
// compiles.
#pragma once

#include <pthread.h>

#include <atomic>
#include <memory>
#include <type_traits>

namespace octavo {
namespace detail {

inline std::atomic<unsigned> forks{0};
inline const int fork_handler = pthread_atfork(nullptr, nullptr, [] { ++forks; });

}  // namespace detail

// The number of fork() calls between this process and the one that loaded the library.
inline unsigned fork_count() { return detail::forks.load(std::memory_order_relaxed); }

template <class T>
class MadeOnce {
 public:
  // `make` may be called by several threads at once; only one result is kept.
  template <class Make>
  const T& get(const Make& make) {
    const T* found = value_.load(std::memory_order_acquire);
    if (found != nullptr) return *found;
    auto fresh = std::make_unique<const T>(make());
    if (value_.compare_exchange_strong(found, fresh.get(), std::memory_order_acq_rel))
      return *fresh.release();
    return *found;
  }

 private:
  std::atomic<const T*> value_{nullptr};
};

template <class T>
class PerProcess {
 public:
  // T is constructed from a pointer to the parent process's T, if it has such a constructor.
  T& get() {
    Held* found = held_.load(std::memory_order_acquire);
    if (found != nullptr && found->forks == fork_count()) return found->state;
    auto fresh = std::make_unique<Held>(found == nullptr ? nullptr : &found->state);
    if (held_.compare_exchange_strong(found, fresh.get(), std::memory_order_acq_rel))
      return fresh.release()->state;
    return found->state;  // made meanwhile by another thread of this process
  }

 private:
  struct Held {
    explicit Held(const T* parent) requires std::is_constructible_v<T, const T*> : state(parent) {}
    explicit Held(const T* /*parent*/) requires(!std::is_constructible_v<T, const T*>) {}
    const unsigned forks = fork_count();
    T state{};
  };
  std::atomic<Held*> held_{nullptr};
};

}  // namespace octavo
