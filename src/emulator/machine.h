// SPDX-License-Identifier: Apache-2.0
// The machine: it runs the clusters of a launch, each CTA a set of fibers on the calling thread.
//
// A thread runs until it waits: for its warp (every .sync and .aligned instruction synchronises 32
// lanes, and the last to arrive does the work of all), for a barrier, for an mbarrier, or for a
// flag in global memory. Without a seed, warps run in turn and copies complete as late as a wait
// allows; with a seed, warps, lanes and completions come in a random order. Hazards are found from
// the happens-before order (clock.h), not from the results of one execution order.
//
// Clusters start in the order of their indices. Without a seed, the next one starts when the others
// have ended or wait for flags, with a seed a few run at the same time.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "emulator/barriers.h"
#include "emulator/clock.h"
#include "emulator/fiber.h"
#include "emulator/flags.h"
#include "emulator/mbarrier.h"
#include "emulator/measure.h"
#include "emulator/memory/async.h"
#include "emulator/memory/copies.h"
#include "emulator/memory/global_accesses.h"
#include "emulator/memory/global_memory.h"
#include "emulator/memory/shared_memory.h"
#include "emulator/report.h"
#include "emulator/schedule.h"
#include "emulator/wgmma.h"

namespace octavo::emulator {

inline constexpr int kWarpSize = 32;

struct Cluster;
struct Cta;
struct Warp;

// The reason why a thread does not run.
struct Wait {
  enum class For : std::uint8_t { nothing, warp, barrier, mbarrier, cluster, registers, flag };
  For what = For::nothing;
  Place place;
  std::uint32_t object = 0;  // a barrier's index, an mbarrier's address, or registers per thread
  std::uint32_t parity = 0;
  const void* flag = nullptr;
};

struct Thread {
  Machine* machine = nullptr;
  Cta* cta = nullptr;
  Warp* warp = nullptr;
  int index = 0;  // in the CTA
  int lane = 0;
  bool done = false;
  Wait wait;
  const char* role = "";
  Knowledge known;
  CopyGroups copies;
  BulkGroups bulk;
  // fence.proxy.async makes this thread's writes up to that number visible to the async proxy, and
  // fence.mbarrier_init the mbarriers it initialised; global_fences are those for global memory.
  Fences proxy_fences, init_fences, global_fences;
  Poll poll;                    // its last ld.acquire
  bool barrier_opened = false;  // the barrier it last arrived at has opened
  const char* spare = nullptr;  // the reason given for its next call
  ClusterTurn cluster_turn;
  Fiber fiber;

  // An access of this thread by an instruction that is complete when it returns.
  By by(Place place) const { return {this, {known.self(), known.now(), place}, Proxy::generic}; }
  Cluster& cluster() const;
};

struct Warp {
  Cta* cta = nullptr;
  int index = 0;
  std::array<Thread*, kWarpSize> lanes{};
  std::uint32_t runnable = 0;  // a bit per lane
  std::uint32_t done = 0;
  // The instruction at which some lanes wait for the others.
  Place meeting;
  std::uint32_t met = 0;
  std::array<void*, kWarpSize> arguments{};
  std::vector<std::shared_ptr<PastWait>> past_waits;  // since the warp last synchronised
  WgmmaQueue wgmma;
  int registers = 0;    // per thread, as set by setmaxnreg
  int measured_as = 0;  // unique among the warps that run
};

struct Cta {
  Cta(Machine& machine, std::uint32_t smem_bytes) : shared(machine, smem_bytes) {}

  Cluster* cluster = nullptr;
  int rank = 0;   // in its cluster
  int block = 0;  // in the grid
  SharedMemory shared;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  std::vector<WarpgroupHistory> warpgroups;
  std::array<NamedBarrier, 16> barriers;
  std::map<std::uint32_t, Mbarrier> mbarriers;  // by offset
  int running = 0;                              // threads that have not ended
  int free_registers = 0;
  std::map<Actor, Access> remote;  // the last access of each actor of another CTA
  Actor started = kNobody;         // the actor that a cluster barrier releases for this CTA
};

// The kinds of actors. A bulk group has two: one reads shared memory, one writes global memory.
enum class Acts : std::uint8_t {
  thread,
  cp_async,
  fence,
  bulk,
  bulk_write,
  mbarrier,
  wgmma,
  grid,
  cta
};
struct ActorInfo {
  Acts acts = Acts::thread;
  const Thread* thread = nullptr;
  std::uint32_t address = 0;  // of an mbarrier
};

// CTAs that share barriers and shared memory: one CTA in a launch without clusters.
struct Cluster {
  std::uint32_t number = 0;  // in the grid
  int slot = 0;              // among the clusters that run
  std::vector<std::unique_ptr<Cta>> ctas;
  ClusterBarrier barrier;
  AsyncOperations async;
  std::vector<ActorInfo> actors;
  Actor earlier_grids = kNobody;

  Actor new_actor(Acts acts, const Thread* thread, std::uint32_t address = 0);
  // Whether a fence known to `known` made `written` visible to the async proxy.
  bool fenced(const Access& written, const Knowledge& known) const;
  // The same for an mbarrier's initialisation.
  bool init_fenced(const Access& init, const Knowledge& known) const;
  bool ended() const;
};

inline Cluster& Thread::cluster() const { return *cta->cluster; }

struct Launch {
  std::string kernel;  // for reports
  int arch = 89;
  std::int64_t blocks = 1;  // a multiple of the cluster size
  int cluster = 1;
  int threads = kWarpSize;
  std::uint32_t smem_bytes = 0;
  int registers = 0;            // per thread; 0: as many as the register file allows
  bool programmatic = false;    // the launch may start before the grid it depends on has ended
  std::function<void()> entry;  // what each thread runs
};

struct Settings {
  std::optional<std::uint64_t> seed;  // of the schedule
  std::optional<Place> mutant;        // this call is disabled; the run ends with the first finding
  bool measure = false;
};

class Machine {
 public:
  Machine(const Launch& launch, const GlobalMemory& global, const Settings& settings);
  ~Machine();

  // Runs the grid, or stops at the first fatal finding.
  void run();

  const Report& report() const { return report_; }
  const Measures& measures() const { return measures_; }
  // Calls that can be disabled, each once, in the order of their first use.
  struct CallUse {
    Place place;
    std::int64_t times = 0;       // calls by threads
    std::int64_t useful = 0;      // calls during which an operation was in flight for it to act on
    const char* spare = nullptr;  // why no test fails when it is disabled
  };
  const std::vector<CallUse>& calls() const { return calls_; }

  // --- Interface for the instructions.
  const Launch& launch() const { return launch_; }
  const GlobalMemory& global() const { return global_; }
  Measures& measures() { return measures_; }
  // Whether this call is the disabled one. `useful`: it has something to do.
  bool mutated(Place place, bool useful = true);
  // `who`: the thread, if it is not the running one.
  void find(Hazard hazard, Place place, std::string text, std::string address = "",
            Place other = {}, const Thread* who = nullptr);
  // The same, and stops the machine: the call does not return.
  [[noreturn]] void stop(Hazard hazard, Place place, std::string text, std::string address = "");
  // The calling thread waits until another wakes it.
  void block(const Wait& wait);
  void wake(Thread& thread);

  // The accesses of the launch to tensors that it may write.
  GlobalAccesses& accesses() { return accesses_; }
  Flags& flags() { return flags_; }
  // Global memory has changed: wakes the threads that wait for it.
  void note_change(const void* data, std::size_t bytes);

 private:
  bool start_cluster();
  void end_clusters();
  void build_cta(Cluster& cluster, std::int64_t block, int rank);
  void run_lane(Warp& warp, int lane);
  void end_thread(Thread& thread);
  [[noreturn]] void leave_for_good(Place place);
  bool run_in_turn();
  bool run_by_seed();
  bool resolve_stall();
  void abandon_fibers();
  std::vector<const Cta*> running_ctas() const;
  void check_convergence(Warp& warp);
  void report_deadlock();

  Launch launch_;
  const GlobalMemory& global_;
  Settings settings_;
  Report report_;
  Measures measures_;
  SeededOrder schedule_;
  std::vector<CallUse> calls_;
  std::array<std::size_t, 64> last_calls_{};        // where each line's last call is in calls_
  std::vector<std::unique_ptr<Cluster>> clusters_;  // those that run, oldest first
  std::int64_t next_block_ = 0;
  std::list<AsyncOperations::Operation> late_stores_;  // of clusters that have ended
  GlobalAccesses accesses_;
  Flags flags_;
  int idle_rounds_ = 0;  // since a flag last changed or a cluster started
  bool stopped_ = false;
};

// The running thread.
Thread& self();

std::string describe(const Thread& thread);

// Synchronises a warp: each lane calls it with its own arguments; the last lane to arrive calls
// `execute(warp, arguments)` once.
void arrive_at(Place place, void* arguments);
bool last_of_warp();
void finish_meeting();

template <class Arguments, class Execute>
void meet(Place place, Arguments& arguments, const Execute& execute) {
  arrive_at(place, &arguments);
  if (!last_of_warp()) {
    self().machine->block({Wait::For::warp, place, 0});
    return;
  }
  Warp& warp = *self().warp;
  std::array<Arguments*, kWarpSize> lanes;
  for (int lane = 0; lane < kWarpSize; ++lane)
    lanes[static_cast<std::size_t>(lane)] =
        static_cast<Arguments*>(warp.arguments[static_cast<std::size_t>(lane)]);
  execute(warp, lanes);
  finish_meeting();
}

}  // namespace octavo::emulator
