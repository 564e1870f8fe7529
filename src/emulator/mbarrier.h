// SPDX-License-Identifier: Apache-2.0
// mbarriers: phases that arrivals and bytes complete.
//
// The phases of an mbarrier are the operations of an actor: a thread knows what an asynchronous
// copy wrote once it has seen the end of the phase that the copy completes on.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "emulator/clock.h"
#include "emulator/memory/shared_memory.h"

namespace octavo::emulator {

struct Cta;
struct Thread;

// A wait that has returned. Its thread may have tested the phase at any time until the thread is
// known to have continued. After the next synchronisation of its warp it is enough to know that any
// lane of the warp has.
struct PastWait {
  const Thread* thread = nullptr;
  std::uint32_t number = 0;  // the thread's operation number
  Place place;
  std::vector<std::uint32_t> met;  // the same for every lane, at the warp's next synchronisation
};
bool covers(const Clock& clock, const PastWait& wait);

struct Mbarrier {
  std::uint32_t count = 0;    // arrivals per phase
  std::uint32_t pending = 0;  // missing arrivals
  std::int64_t bytes = 0;     // expected bytes minus arrived bytes
  std::uint32_t phase = 0;    // number of phases that have ended
  Access init;
  Actor actor = kNobody;
  Clock clock;               // joined from all arrivals so far
  SharedClock ended;         // the clock at the end of the last phase
  std::uint32_t copies = 0;  // copies in flight that will complete on this phase
  Place last_copy;
  std::vector<Thread*> waiting;
  std::vector<std::shared_ptr<PastWait>> seen;  // waits that the end of the last phase satisfied
};

// An mbarrier somewhere in the cluster.
struct MbarrierAt {
  Cta* cta = nullptr;
  std::uint32_t offset = 0;
  Mbarrier* barrier = nullptr;
};
// The user of an mbarrier: a thread of its CTA (near), or another CTA or the async proxy (far).
enum class Reach : std::uint8_t { near, far };
// Stops the machine if there is no mbarrier, or if the thread cannot know of its initialisation.
MbarrierAt mbarrier_at(Thread& thread, Place place, std::uint32_t address, Reach reach);

void mbarrier_arrive(Thread& thread, const MbarrierAt& at, Place place);
// An arrival that releases only what `clock` holds.
void mbarrier_arrive_with(Thread& thread, const MbarrierAt& at, const Clock& clock, Place place);
void mbarrier_expect(const MbarrierAt& at, std::uint32_t bytes);
void mbarrier_complete(Thread& thread, const MbarrierAt& at, std::uint32_t bytes, Place place);
// Blocks the calling thread until the phase of that parity has ended.
void mbarrier_wait(const MbarrierAt& at, std::uint32_t parity, Place place);
// Whether the phase has ended. If so, the call has the effect of a wait.
bool mbarrier_test(const MbarrierAt& at, std::uint32_t parity, Place place);
std::string describe(const Mbarrier& barrier);  // what its phase still needs

}  // namespace octavo::emulator
