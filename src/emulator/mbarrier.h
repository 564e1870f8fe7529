// mbarriers: phases completed by arrivals and by bytes.
//
// The phases of an mbarrier are an actor's deeds: what an asynchronous copy writes is known to
// whoever has seen the phase end that waits for it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "emulator/clock.h"
#include "emulator/shared_memory.h"

namespace octavo::emulator {

struct Cta;
struct Thread;

// A wait that is over. Its thread may have looked at any time until somebody says otherwise: it
// itself, or, once its warp has met, any lane of the warp.
struct PastWait {
  const Thread* thread = nullptr;
  std::uint32_t number = 0;  // of the thread's deeds
  Place place;
  std::vector<std::uint32_t> met;  // the same of every lane, where the warp met next
};
bool covers(const Clock& clock, const PastWait& wait);

struct Mbarrier {
  std::uint32_t count = 0;    // arrivals of a phase
  std::uint32_t pending = 0;  // that are missing
  std::int64_t bytes = 0;     // expected, less those that came
  std::uint32_t phase = 0;    // phases that have ended
  Access init;
  Actor actor = kNobody;
  Clock clock;               // of those who have arrived, ever
  SharedClock ended;         // as the last phase left it
  std::uint32_t copies = 0;  // in flight that will complete on this phase
  Place last_copy;
  std::vector<Thread*> waiting;
  std::vector<std::shared_ptr<PastWait>> seen;  // waits that the last phase ended
};

// An mbarrier somewhere in the cluster.
struct MbarrierAt {
  Cta* cta = nullptr;
  std::uint32_t offset = 0;
  Mbarrier* barrier = nullptr;
};
// How it is used: by threads of its CTA, or from afar (another CTA, the async proxy).
enum class Reach : std::uint8_t { near, far };
// Stops the machine where there is none, or the thread cannot know of its initialisation.
MbarrierAt mbarrier_at(Thread& thread, Place place, std::uint32_t address, Reach reach);

void mbarrier_arrive(Thread& thread, const MbarrierAt& at, Place place);
// An arrival that tells only what `clock` holds.
void mbarrier_arrive_with(Thread& thread, const MbarrierAt& at, const Clock& clock, Place place);
void mbarrier_expect(const MbarrierAt& at, std::uint32_t bytes);
void mbarrier_complete(Thread& thread, const MbarrierAt& at, std::uint32_t bytes, Place place);
// Blocks the calling thread until the phase of that parity has ended.
void mbarrier_wait(const MbarrierAt& at, std::uint32_t parity, Place place);
// Whether it is over; then as after a wait.
bool mbarrier_test(const MbarrierAt& at, std::uint32_t parity, Place place);
std::string describe(const Mbarrier& barrier);  // what its phase lacks

}  // namespace octavo::emulator
