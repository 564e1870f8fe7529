// State of the whole library that a child of fork() can use.
//
// A child has one thread, the one that called fork(). What another thread of the parent had locked
// stays locked in the child for ever: a mutex, a std::once_flag, and also the hidden guard of a
// function-local static that was being made. So state of the whole library is made without a lock:
// who comes first makes it, publishes it by one compare-and-swap, and of two that make it at the
// same time one throws its own away.
//
//   MadeOnce<T>    a constant. A child uses its parent's.
//   PerProcess<T>  anything with a mutex, a thread or a handle of the driver in it. A child starts
//                  with a new one and leaves its parent's alone, whatever state that is in.
//
// Both are constant-initialised, need no guard themselves, and are never destroyed: other static
// objects may use them at exit. The alternative, to lock every mutex before a fork() and unlock it
// after, would make fork() wait for whoever holds one, which is seconds while a kernel compiles.
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

// How many calls of fork() lie between this process and the one that loaded the library.
inline unsigned fork_count() { return detail::forks.load(std::memory_order_relaxed); }

template <class T>
class MadeOnce {
 public:
  // `make` may be called by several threads at once, and then only one result is kept.
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
  // T is made from a pointer to the T of the parent process, where it can be and there is one.
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
