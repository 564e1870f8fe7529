// The machine: a launch is run cluster by cluster, each CTA a set of fibers on the calling thread.
//
// A thread runs until it waits: for its warp (every .sync and .aligned instruction is a meeting of
// 32 lanes, and the last to arrive does the work of all), for a barrier, for an mbarrier. Without a
// seed warps run in turn and copies complete as late as somebody's wait allows; with one, warps,
// lanes and completions come in the seed's order. Hazards are found from what happened before what
// (clock.h), not from what the order brought to light.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "emulator/async.h"
#include "emulator/barriers.h"
#include "emulator/clock.h"
#include "emulator/copies.h"
#include "emulator/fiber.h"
#include "emulator/global_memory.h"
#include "emulator/mbarrier.h"
#include "emulator/measure.h"
#include "emulator/report.h"
#include "emulator/schedule.h"
#include "emulator/shared_memory.h"
#include "emulator/wgmma.h"

namespace octavo::emulator {

inline constexpr int kWarpSize = 32;

struct Cta;
struct Warp;

// Why a thread does not run.
struct Wait {
  enum class For : std::uint8_t { nothing, warp, barrier, mbarrier, cluster, registers };
  For what = For::nothing;
  Place place;
  std::uint32_t object = 0;  // a barrier's number, an mbarrier's address, registers a thread
  std::uint32_t parity = 0;
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
  // What this thread did up to that number, the async proxy sees: fence.proxy.async for its writes,
  // fence.mbarrier_init for the mbarriers it initialised.
  Fences proxy_fences, init_fences;
  bool barrier_opened = false;  // the one it came to last
  const char* spare = nullptr;  // what it says about its next call
  ClusterTurn cluster_turn;
  Fiber fiber;

  // An access of this thread, by an instruction that is complete when it returns.
  By by(Place place) const { return {this, {known.self(), known.now(), place}, Proxy::generic}; }
};

struct Warp {
  Cta* cta = nullptr;
  int index = 0;
  std::array<Thread*, kWarpSize> lanes{};
  std::uint32_t runnable = 0;  // a bit per lane
  std::uint32_t done = 0;
  // The instruction that lanes have come to and others have not.
  Place meeting;
  std::uint32_t met = 0;
  std::array<void*, kWarpSize> arguments{};
  std::vector<std::shared_ptr<PastWait>> past_waits;  // since it last met
  WgmmaQueue wgmma;
  int registers = 0;  // a thread, as setmaxnreg left them
};

struct Cta {
  Cta(Machine& machine, std::uint32_t smem_bytes) : shared(machine, smem_bytes) {}

  int rank = 0;   // in its cluster
  int block = 0;  // in the grid
  SharedMemory shared;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  std::vector<WarpgroupCourse> warpgroups;
  std::array<NamedBarrier, 16> barriers;
  std::map<std::uint32_t, Mbarrier> mbarriers;  // by offset
  int running = 0;                              // threads that have not ended
  int free_registers = 0;
  std::map<Actor, Access> remote;  // the last access of each actor of another CTA
  Actor started = kNobody;         // what a cluster barrier tells of this CTA
};

struct Launch {
  std::string kernel;  // for reports
  int arch = 89;
  std::int64_t blocks = 1;  // a multiple of the cluster
  int cluster = 1;
  int threads = kWarpSize;
  std::uint32_t smem_bytes = 0;
  int registers = 0;            // a thread; 0: as many as the register file allows
  bool programmatic = false;    // the launch may start before the grid it depends on has ended
  std::function<void()> entry;  // what each thread runs
};

struct Settings {
  std::optional<std::uint64_t> seed;  // of the schedule
  std::optional<Place> mutant;        // this call does nothing; ends with the first finding
  bool measure = false;
};

class Machine {
 public:
  Machine(const Launch& launch, const GlobalMemory& global, const Settings& settings);
  ~Machine();

  // Runs the grid, or as far as it gets.
  void run();

  const Report& report() const { return report_; }
  const Measures& measures() const { return measures_; }
  // Calls that can be switched off, each once, in the order they were first met.
  struct CallUse {
    Place place;
    std::int64_t times = 0;       // called by a thread
    std::int64_t useful = 0;      // of those, how often anything was in flight for it to act on
    const char* spare = nullptr;  // why nothing notices when it is switched off
  };
  const std::vector<CallUse>& calls() const { return calls_; }

  // --- For the instructions.
  const Launch& launch() const { return launch_; }
  const GlobalMemory& global() const { return global_; }
  Measures& measures() { return measures_; }
  // Whether this call is the one that is switched off. `useful`: it has something to do.
  bool mutated(Place place, bool useful = true);
  // `who`: where it is not the thread that runs.
  void find(Hazard hazard, Place place, std::string text, std::string address = "",
            Place other = {}, const Thread* who = nullptr);
  // The same, and nothing more is run: the calling thread does not come back from this.
  [[noreturn]] void stop(Hazard hazard, Place place, std::string text, std::string address = "");
  // The calling thread waits until somebody wakes it.
  void block(const Wait& wait);
  void wake(Thread& thread);

  // Somebody who acts in an order of his own.
  enum class Acts : std::uint8_t { thread, cp_async, fence, bulk, mbarrier, wgmma, grid, cta };
  struct ActorInfo {
    Acts acts = Acts::thread;
    const Thread* thread = nullptr;
    std::uint32_t address = 0;  // of an mbarrier
  };
  Actor new_actor(Acts acts, const Thread* thread, std::uint32_t address = 0);
  const ActorInfo& actor(Actor actor) const { return actors_[actor]; }
  // Whether the writer of `written` made it visible to the async proxy, as far as `known` reaches.
  bool fenced(const Access& written, const Knowledge& known) const;
  // The same of an mbarrier's initialisation.
  bool init_fenced(const Access& init, const Knowledge& known) const;

  std::vector<std::unique_ptr<Cta>>& ctas() { return ctas_; }
  ClusterBarrier& cluster_barrier() { return cluster_barrier_; }
  AsyncOperations& async() { return async_; }
  Actor earlier_grids() const { return earlier_grids_; }

 private:
  void build_cluster(std::int64_t first_block);
  void run_cluster();
  void build_cta(std::int64_t block, int rank);
  void run_lane(Warp& warp, int lane);
  void end_thread(Thread& thread);
  [[noreturn]] void leave_for_good(Place place);
  bool run_in_turn();
  bool run_by_seed();
  void check_convergence(Warp& warp);
  bool all_done() const;
  void report_deadlock();

  Launch launch_;
  const GlobalMemory& global_;
  Settings settings_;
  Report report_;
  Measures measures_;
  SeededOrder schedule_;
  std::vector<CallUse> calls_;
  StackPool stacks_;
  std::vector<std::unique_ptr<Cta>> ctas_;
  ClusterBarrier cluster_barrier_;
  AsyncOperations async_;
  std::vector<ActorInfo> actors_;
  Actor earlier_grids_ = kNobody;
  bool stopped_ = false;
};

// The thread that runs now.
Thread& self();

std::string describe(const Thread& thread);

// Meeting of a warp: called by each lane with its own arguments; `execute(warp, arguments)` is
// called once, by the last to arrive.
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
