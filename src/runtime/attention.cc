// The one-call form: plans are kept by problem and device, workspaces by thread and stream.
#include <algorithm>
#include <list>
#include <mutex>

#include "attention/error.h"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

// The most recently used plans. A plan is small and cheap to look through; what it holds (a
// loaded kernel) is worth keeping, but a server that sees every length must not grow without end.
class PlanCache {
 public:
  Result<Plan> get(const Problem& problem, Device device) {
    const std::lock_guard lock(mutex_);
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry)
      if (entry->device == device && entry->plan.problem() == problem) {
        entries_.splice(entries_.begin(), entries_, entry);
        return entry->plan;
      }
    Result<Plan> made = plan(problem, device);
    if (!made.ok()) return made;
    entries_.push_front({device, *made});
    if (entries_.size() > kPlans) entries_.pop_back();
    return made;
  }

 private:
  static constexpr std::size_t kPlans = 64;
  struct Entry {
    Device device;
    Plan plan;
  };
  std::mutex mutex_;
  std::list<Entry> entries_;
};

PlanCache& plan_cache() {
  static PlanCache cache;
  return cache;
}

// A thread's workspaces, which grow to their largest call and are used again. On a GPU each stream
// has its own: work of two streams may run side by side.
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

}  // namespace

Status attention(const Arguments& arguments, const Options& options, Device device, Stream stream) {
  const Result<Problem> problem = problem_of(arguments, options);
  if (!problem.ok()) return problem.status();
  const Result<Plan> made = plan_cache().get(*problem, device);
  if (!made.ok()) return made.status();
  thread_local ThreadWorkspaces workspaces;
  const Result<Workspace> workspace =
      workspaces.at_least(device, stream, made->workspace_bytes(arguments));
  if (!workspace.ok()) return workspace.status();
  return made->run(arguments, *workspace, stream);
}

}  // namespace octavo
