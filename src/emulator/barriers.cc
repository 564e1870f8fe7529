#include "emulator/barriers.h"

#include <fmt/format.h>

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
    // Those that come from the same meeting bring the same clock: it is joined once.
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

}  // namespace octavo::emulator
