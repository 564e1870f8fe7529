// bar.sync, the sixteen barriers of a CTA, and barrier.cluster.
#pragma once

#include <cstdint>
#include <vector>

#include "emulator/clock.h"
#include "emulator/report.h"

namespace octavo::emulator {

class Machine;
struct Thread;
struct Warp;

struct NamedBarrier {
  int expected = 0;  // threads; 0: nobody has come yet
  int arrived = 0;
  Place place;  // of the first to arrive
  Clock clock;  // what the arrived know
  SharedClock last_joined;
  std::vector<Thread*> waiting;
};

// The whole warp arrives at barrier `id` of its CTA, which opens when `count` threads have.
// wait: bar.sync; else bar.arrive. The lanes that wait are woken when the barrier opens.
void arrive_at_barrier(Warp& warp, int id, int count, bool wait, Place place);

// barrier.cluster: all threads of all CTAs of a cluster.
struct ClusterBarrier {
  int arrived = 0;
  std::uint32_t turn = 0;  // how often it has opened
  Clock clock;
  SharedClock opened;  // what those knew who had arrived when it last did
  std::vector<Thread*> waiting;
};
// Where a thread stands with it.
struct ClusterTurn {
  std::uint32_t arrived = 0;  // times
  std::uint32_t waited = 0;
};

// Both by a whole warp. Without `release`, others learn that this CTA runs and which mbarriers it
// has made ready, and nothing else.
void arrive_at_cluster(Warp& warp, bool release, Place place);
void wait_for_cluster(Place place);  // by each thread
// The barrier opens when all threads have arrived that have not ended.
void open_cluster_barrier(Machine& machine);

}  // namespace octavo::emulator
