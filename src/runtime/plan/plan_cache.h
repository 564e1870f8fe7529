// SPDX-License-Identifier: Apache-2.0
// Caches of the one-call forms: plans by problem and device, workspaces by thread and stream.
#pragma once

#include <algorithm>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "octavo/octavo.hpp"

namespace octavo {

// The most recently used plans of the forward or the backward pass. A plan holds a loaded kernel
// and is worth keeping, but memory must not grow without bound on a server that sees every length.
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

// A plan that some thread is making. Threads that need the same plan wait for it; others do not.
template <class Impl>
struct Planning {
  Planning(const Problem& planned, Device on) : problem(planned), device(on) {}
  const Problem problem;
  const Device device;
  std::mutex mutex;                  // held while the plan is made
  std::shared_ptr<const Impl> plan;  // null until then, or if planning failed
};

// Plans shared by all threads. The lock is not held while a plan is made, which may compile a
// kernel for seconds.
template <class Impl>
struct SharedPlans {
  std::mutex mutex;
  PlanCache<Impl> cache{64};
  std::list<std::shared_ptr<Planning<Impl>>> in_progress;

  // Returns the planning of this problem that is in progress, or starts a new one.
  std::shared_ptr<Planning<Impl>> join(const Problem& problem, Device device) {
    for (const auto& planning : in_progress)
      if (planning->device == device && planning->problem == problem) return planning;
    return in_progress.emplace_back(std::make_shared<Planning<Impl>>(problem, device));
  }
};

template <class Impl, class Make>
Result<std::shared_ptr<const Impl>> shared_plan(const Problem& problem, Device device,
                                                SharedPlans<Impl>& shared, const Make& make) {
  std::shared_ptr<Planning<Impl>> planning;
  {
    const std::lock_guard lock(shared.mutex);
    if (const auto* const found = shared.cache.find(problem, device)) return *found;
    planning = shared.join(problem, device);
  }
  const std::lock_guard lock(planning->mutex);
  if (planning->plan != nullptr) return planning->plan;
  // If planning fails, each thread that waits for the plan tries again and reports its own error.
  Result<std::shared_ptr<const Impl>> made =
      without_exceptions([&] { return make(problem, device); });
  const std::lock_guard of_all(shared.mutex);
  shared.in_progress.remove(planning);
  if (!made.ok()) return made;
  planning->plan = *made;
  return *shared.cache.add(*std::move(made));
}

// Looks in the thread's cache, then in the shared one, then calls make(problem, device). The
// pointer is valid until the thread's next call.
template <class Impl, class Make>
Result<const Impl*> plan_for(const Problem& problem, Device device, PlanCache<Impl>& of_thread,
                             SharedPlans<Impl>& shared, const Make& make) {
  if (const auto* const found = of_thread.find(problem, device)) return found->get();
  Result<std::shared_ptr<const Impl>> made = shared_plan(problem, device, shared, make);
  if (!made.ok()) return made.status();
  return of_thread.add(*std::move(made))->get();
}

// A thread's workspaces, which grow to the largest call and are reused. On a GPU each stream has
// its own, because the work of two streams may run concurrently.
class ThreadWorkspaces {
 public:
  // The workspace of the thread's last call on this stream, if there was one.
  Workspace last(Device device, Stream stream) const {
    if (device.kind == Device::Kind::cpu) stream = nullptr;
    for (const Entry& e : entries_)
      if (e.device == device && e.stream == stream) return {e.buffer.data(), e.buffer.bytes()};
    return {};
  }
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

// The workspaces of this thread. Both passes use them, as a thread runs one call at a time, and on
// a GPU the calls of one stream run one after another.
ThreadWorkspaces& thread_workspaces();

}  // namespace octavo
