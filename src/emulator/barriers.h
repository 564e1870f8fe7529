// SPDX-License-Identifier: Apache-2.0
// The barriers of a CTA (bar.sync and bar.arrive, sixteen of them) and of a cluster
// (barrier.cluster).
#pragma once

#include <cstdint>
#include <vector>

#include "emulator/clock.h"
#include "emulator/report.h"

namespace octavo::emulator {

struct Cluster;
struct Thread;
struct Warp;

struct NamedBarrier {
  int expected = 0;  // threads; 0: no thread has arrived yet
  int arrived = 0;
  Place place;  // of the first arrival
  Clock clock;  // the joined knowledge of the arrived threads
  SharedClock last_joined;
  std::vector<Thread*> waiting;
};

// The whole warp arrives at barrier `id` of its CTA, which opens when `count` threads have arrived.
// With `wait` it is bar.sync, and the lanes are woken when the barrier opens; otherwise it is
// bar.arrive.
void arrive_at_barrier(Warp& warp, int id, int count, bool wait, Place place);

// barrier.cluster: all threads of all CTAs of a cluster.
struct ClusterBarrier {
  int arrived = 0;
  std::uint32_t turn = 0;  // how often it has opened
  Clock clock;
  SharedClock opened;  // the joined knowledge of the threads that had arrived when it last opened
  std::vector<Thread*> waiting;
};
// A thread's position relative to the cluster barrier.
struct ClusterTurn {
  std::uint32_t arrived = 0;  // number of arrivals
  std::uint32_t waited = 0;
};

// A whole warp calls it. Without `release`, other CTAs learn only that this CTA runs, and which of
// its mbarriers are initialised.
void arrive_at_cluster(Warp& warp, bool release, Place place);
void wait_for_cluster(Place place);  // each thread calls it
// The barrier opens when all threads that have not ended have arrived.
void open_cluster_barrier(Cluster& cluster);

}  // namespace octavo::emulator
