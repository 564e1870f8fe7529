// bar.sync: the sixteen barriers of a CTA.
#pragma once

#include <cstdint>
#include <vector>

#include "emulator/clock.h"
#include "emulator/report.h"

namespace octavo::emulator {

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

}  // namespace octavo::emulator
