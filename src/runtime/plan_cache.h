// Caches of the one-call forms: plans by problem and device, workspaces by thread and stream.
#pragma once

#include <algorithm>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

#include "octavo/octavo.hpp"

namespace octavo {

// The most recently used plans, of the forward or the backward pass. A plan holds a loaded kernel
// and is worth keeping, but a server that sees every length must not grow without bound.
template <class Impl>
class PlanCache {
 public:
  using SharedPlan = std::shared_ptr<const Impl>;

  explicit PlanCache(std::size_t most) : most_(most) {}

  const SharedPlan* find(const Problem& problem, Device device) {
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry)
      if ((*entry)->device == device && (*entry)->problem == problem) {
        entries_.splice(entries_.begin(), entries_, entry);
        return &entries_.front();
      }
    return nullptr;
  }
  const SharedPlan* add(SharedPlan plan) {
    entries_.push_front(std::move(plan));
    if (entries_.size() > most_) entries_.pop_back();
    return &entries_.front();
  }
  const std::list<SharedPlan>& entries() const { return entries_; }

 private:
  const std::size_t most_;
  std::list<SharedPlan> entries_;
};

// Plans shared by all threads. Planning holds the lock, so that two threads do not compile the same
// kernel.
template <class Impl>
struct SharedPlans {
  std::mutex mutex;
  PlanCache<Impl> cache{64};
};

// Looks in the thread's cache, then in the shared one, then calls make(problem, device). The
// pointer is valid until the thread's next call.
template <class Impl, class Make>
Result<const Impl*> plan_for(const Problem& problem, Device device, PlanCache<Impl>& of_thread,
                             SharedPlans<Impl>& shared, const Make& make) {
  if (const auto* const found = of_thread.find(problem, device)) return found->get();
  const std::lock_guard lock(shared.mutex);
  if (const auto* const found = shared.cache.find(problem, device))
    return of_thread.add(*found)->get();
  Result<std::shared_ptr<const Impl>> made = make(problem, device);
  if (!made.ok()) return made.status();
  return of_thread.add(*shared.cache.add(*std::move(made)))->get();
}

// A thread's workspaces, which grow to the largest call and are reused. On a GPU each stream has
// its own, because the work of two streams may run concurrently.
class ThreadWorkspaces {
 public:
  Result<Workspace> at_least(Device device, Stream stream, std::size_t bytes) {
    if (bytes == 0) return Workspace{};
    if (device.kind == Device::Kind::cpu) stream = nullptr;
    const auto same = [&](const Entry& e) { return e.device == device && e.stream == stream; };
    const auto found = std::find_if(entries_.begin(), entries_.end(), same);
    if (found != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, found);
    } else {
      entries_.push_front({device, stream, {}});
      if (entries_.size() > kStreams) entries_.pop_back();
    }
    Buffer& buffer = entries_.front().buffer;
    if (buffer.bytes() < bytes) {
      buffer = {};
      Result<Buffer> made = Buffer::make(device, bytes);
      if (!made.ok()) return made.status();
      buffer = std::move(made).value();
    }
    return Workspace{buffer.data(), buffer.bytes()};
  }

 private:
  static constexpr std::size_t kStreams = 16;
  struct Entry {
    Device device;
    Stream stream;
    Buffer buffer;
  };
  std::list<Entry> entries_;
};

// One for each thread, which both passes use: a thread runs one call at a time, and on a GPU the
// calls of one stream run one after another.
ThreadWorkspaces& thread_workspaces();

}  // namespace octavo
