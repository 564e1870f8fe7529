// The one-call form: plans are kept by problem and device, the workspace by thread.
#include <list>
#include <mutex>
#include <new>

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

// A thread's workspace grows to its largest call and is used again.
class ThreadWorkspace {
 public:
  Workspace at_least(std::size_t bytes) {
    if (bytes > bytes_) {
      memory_.reset();
      bytes_ = 0;
      memory_.reset(::operator new (bytes, std::align_val_t{kAlignment}, std::nothrow));
      if (memory_) bytes_ = bytes;
    }
    return {memory_.get(), bytes_};
  }

 private:
  static constexpr std::size_t kAlignment = 64;
  struct Free {
    void operator()(void* p) const { ::operator delete (p, std::align_val_t{kAlignment}); }
  };
  std::unique_ptr<void, Free> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace

Status attention(const Arguments& arguments, const Options& options, Device device, Stream stream) {
  const Result<Problem> problem = problem_of(arguments, options);
  if (!problem.ok()) return problem.status();
  const Result<Plan> made = plan_cache().get(*problem, device);
  if (!made.ok()) return made.status();
  const std::size_t needed = made->workspace_bytes();
  thread_local ThreadWorkspace workspace;
  const Workspace memory = workspace.at_least(needed);
  if (memory.bytes < needed)
    return {ErrorCode::out_of_memory,
            fmt::format("The workspace of {} bytes could not be allocated.", needed)};
  return made->run(arguments, memory, stream);
}

}  // namespace octavo
