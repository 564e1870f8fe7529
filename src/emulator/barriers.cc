// SPDX-License-Identifier: Apache-2.0
#include "emulator/barriers.h"

#include <fmt/format.h>

#include <utility>

#include "emulator/machine.h"

namespace octavo::emulator {

void arrive_at_barrier(Warp& warp, int id, int count, bool wait, Place place) {
  Cta& cta = *warp.cta;
  Machine& machine = *warp.lanes[0]->machine;
  if (id < 0 || id >= static_cast<int>(cta.barriers.size()))
    machine.stop(Hazard::barrier_count, place, fmt::format("barrier {} of 0 to 15", id));
  if (count <= 0 || count % kWarpSize != 0 || count > machine.launch().threads)
    machine.stop(
        Hazard::barrier_count, place,
        fmt::format("barrier {} is told {} threads; the CTA has {}, and whole warps arrive", id,
                    count, machine.launch().threads));
  NamedBarrier& barrier = cta.barriers[static_cast<std::size_t>(id)];
  if (barrier.arrived == 0) {
    barrier.expected = count;
    barrier.place = place;
  } else if (barrier.expected != count) {
    machine.stop(Hazard::barrier_count, place,
                 fmt::format("barrier {} is told {} threads here and {} by {}", id, count,
                             barrier.expected, describe(barrier.place)));
  }
  barrier.arrived += kWarpSize;
  if (barrier.arrived > barrier.expected)
    machine.stop(Hazard::barrier_count, place,
                 fmt::format("barrier {} is full: {} threads for {}", id, barrier.arrived,
                             barrier.expected));
  for (Thread* lane : warp.lanes) {
    // Lanes that last synchronised together share a clock, which is joined only once.
    if (lane->known.shared() != barrier.last_joined) {
      lane->known.release_into(barrier.clock);
      barrier.last_joined = lane->known.shared();
    } else {
      lane->known.release_own_into(barrier.clock);
    }
    if (wait) barrier.waiting.push_back(lane);
  }
  if (barrier.arrived < barrier.expected) return;
  const auto clock = std::make_shared<const Clock>(std::move(barrier.clock));
  for (Thread* thread : barrier.waiting) {
    thread->known.replace(clock);
    thread->barrier_opened = true;
    if (thread->wait.what == Wait::For::barrier) machine.wake(*thread);
  }
  barrier = {};
}

void arrive_at_cluster(Warp& warp, bool release, Place place) {
  Machine& machine = *warp.lanes[0]->machine;
  ClusterBarrier& barrier = warp.cta->cluster->barrier;
  for (Thread* lane : warp.lanes) {
    if (lane->cluster_turn.arrived != lane->cluster_turn.waited)
      machine.find(Hazard::barrier_count, place,
                   "a second arrival at the cluster's barrier without a wait between", "", {},
                   lane);
    ++lane->cluster_turn.arrived;
    barrier.clock.raise(warp.cta->started, 1);
    if (lane->init_fences.actor != kNobody)
      barrier.clock.raise(lane->init_fences.actor, lane->init_fences.until);
    if (release) lane->known.release_into(barrier.clock);
  }
  barrier.arrived += kWarpSize;
  open_cluster_barrier(*warp.cta->cluster);
}

void open_cluster_barrier(Cluster& cluster) {
  ClusterBarrier& barrier = cluster.barrier;
  int running = 0, arrived = 0;
  for (const auto& cta : cluster.ctas)
    for (const auto& thread : cta->threads) {
      running += thread->done ? 0 : 1;
      arrived += !thread->done && thread->cluster_turn.arrived > barrier.turn ? 1 : 0;
    }
  if (arrived == 0 || arrived < running) return;
  ++barrier.turn;
  barrier.opened = std::make_shared<const Clock>(barrier.clock);
  for (Thread* thread : std::exchange(barrier.waiting, {})) thread->machine->wake(*thread);
}

void wait_for_cluster(Place place) {
  Thread& t = self();
  ClusterBarrier& barrier = t.cluster().barrier;
  if (t.cluster_turn.waited == t.cluster_turn.arrived)
    t.machine->stop(Hazard::barrier_count, place,
                    "a wait for the cluster's barrier without an arrival before it");
  ++t.cluster_turn.waited;
  while (barrier.turn < t.cluster_turn.waited) {
    barrier.waiting.push_back(&t);
    t.machine->block({Wait::For::cluster, place});
  }
  t.known.acquire(barrier.opened);
}

}  // namespace octavo::emulator
