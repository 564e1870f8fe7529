// attention(): plans are cached by problem and device, workspaces by thread and stream.
#include <algorithm>
#include <list>
#include <mutex>

#include "base/error.h"
#include "numeric/fork_safe.h"
#include "octavo/octavo.hpp"
#include "runtime/backend.h"

namespace octavo {
namespace {

using SharedPlan = std::shared_ptr<const Plan::Impl>;

// The most recently used plans. A plan holds a loaded kernel and is worth keeping, but a server
// that sees every length must not grow without bound.
class PlanCache {
 public:
  explicit PlanCache(std::size_t most) : most_(most) {}

  const SharedPlan* find(const Problem& problem, Device device) {
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry)
      if ((*entry)->device == device && (*entry)->problem == problem) {
        entries_.splice(entries_.begin(), entries_, entry);
        return &entries_.front();
      }
    return nullptr;
  }
  // Runs the first plan whose last run differs only in addresses.
  bool run_again(const Arguments& arguments, const Options& options, Device device,
                 Workspace workspace, Stream stream, Status& status) const {
    for (const SharedPlan& plan : entries_)
      if (plan->device == device && plan->problem.options == options &&
          plan->run_again(arguments, workspace, stream, status))
        return true;
    return false;
  }
  const SharedPlan* add(SharedPlan plan) {
    entries_.push_front(std::move(plan));
    if (entries_.size() > most_) entries_.pop_back();
    return &entries_.front();
  }

 private:
  const std::size_t most_;
  std::list<SharedPlan> entries_;
};

// A plan that some thread is making. Threads that need the same plan wait for it; others do not.
struct Planning {
  Planning(const Problem& planned, Device on) : problem(planned), device(on) {}
  const Problem problem;
  const Device device;
  std::mutex mutex;  // held while the plan is made
  SharedPlan plan;   // null until then, and if it could not be made
};

// Plans shared by all threads. The lock is not held while a plan is made, which may compile a
// kernel for seconds.
struct SharedPlans {
  std::mutex mutex;
  PlanCache cache{64};
  std::list<std::shared_ptr<Planning>> in_progress;
};
constinit PerProcess<SharedPlans> shared_plans;

// The planning of this problem that is in progress, or a new one.
std::shared_ptr<Planning> join_planning(SharedPlans& plans, const Problem& problem, Device device) {
  for (const std::shared_ptr<Planning>& planning : plans.in_progress)
    if (planning->device == device && planning->problem == problem) return planning;
  return plans.in_progress.emplace_back(std::make_shared<Planning>(problem, device));
}

Result<SharedPlan> shared_plan(const Problem& problem, Device device) {
  SharedPlans& plans = shared_plans.get();
  std::shared_ptr<Planning> planning;
  {
    const std::lock_guard lock(plans.mutex);
    if (const SharedPlan* const found = plans.cache.find(problem, device)) return *found;
    planning = join_planning(plans, problem, device);
  }
  const std::lock_guard lock(planning->mutex);
  if (planning->plan != nullptr) return planning->plan;
  // If it fails, a thread that waits for it tries again by itself and reports its own error.
  Result<SharedPlan> made = without_exceptions([&] { return make_plan(problem, device); });
  const std::lock_guard shared(plans.mutex);
  plans.in_progress.remove(planning);
  if (!made.ok()) return made;
  planning->plan = *made;
  return *plans.cache.add(*std::move(made));
}

// This thread's plans, which need no lock.
PlanCache& thread_plans() {
  constexpr std::size_t kPlans = 8;
  thread_local PlanCache cache(kPlans);
  return cache;
}

// The pointer is valid until this thread's next call.
Result<const Plan::Impl*> plan_for(const Problem& problem, Device device) {
  PlanCache& cache = thread_plans();
  if (const SharedPlan* const found = cache.find(problem, device)) return found->get();
  Result<SharedPlan> made = shared_plan(problem, device);
  if (!made.ok()) return made.status();
  return cache.add(*std::move(made))->get();
}

// A thread's workspaces, which grow to the largest call and are reused. On a GPU each stream has
// its own, because the work of two streams may run concurrently.
class ThreadWorkspaces {
 public:
  // The one of the last call on this stream, if there is any.
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

}  // namespace

Status attention(const Arguments& arguments, const Options& options, Device device, Stream stream) {
  return without_exceptions([&]() -> Status {
    thread_local ThreadWorkspaces workspaces;
    const Workspace last = workspaces.last(device, stream);
    if (Status status; thread_plans().run_again(arguments, options, device, last, stream, status))
      return status;
    const Result<Problem> problem = problem_of(arguments, options);
    if (!problem.ok()) return problem.status();
    const Result<const Plan::Impl*> made = plan_for(*problem, device);
    if (!made.ok()) return made.status();
    const Plan::Impl& plan = **made;
    const Result<Workspace> workspace =
        workspaces.at_least(device, stream, plan.full_workspace_bytes(*problem, &arguments));
    if (!workspace.ok()) return workspace.status();
    return run_validated(plan, *problem, arguments, *workspace, stream);
  });
}

}  // namespace octavo
