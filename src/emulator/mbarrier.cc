// SPDX-License-Identifier: Apache-2.0
#include "emulator/mbarrier.h"

#include <fmt/format.h>

#include <utility>

#include "emulator/machine.h"
#include "emulator/memory/access.h"

namespace octavo::emulator {
namespace {

// A wait names only the parity of a phase. A thread that could still be waiting when the next phase
// has ended too would go on to wait for a third one.
void check_past_waits(Thread& thread, const MbarrierAt& at, Place place) {
  const Mbarrier& b = *at.barrier;
  for (const auto& wait : b.seen)
    if (!covers(b.clock, *wait))
      thread.machine->find(
          Hazard::mbarrier_misuse, place,
          fmt::format("the phase ends while {} may still wait for the one before it: nothing that "
                      "has arrived comes after that wait",
                      describe(*wait->thread)),
          fmt::format("mbarrier {:#x}", at.offset + SharedMemory::kBase), wait->place, &thread);
}

void end_phase_if_complete(Thread& thread, const MbarrierAt& at, Place place) {
  Mbarrier& b = *at.barrier;
  if (b.pending != 0 || b.bytes != 0) return;
  Machine& machine = *thread.machine;
  check_past_waits(thread, at, place);
  b.seen.clear();
  if (b.copies > 0) {
    machine.find(Hazard::transaction_bytes, place,
                 fmt::format("the phase ends while {} copies that complete on it are in flight: "
                             "fewer bytes were expected than they bring",
                             b.copies),
                 fmt::format("mbarrier {:#x}", at.offset + SharedMemory::kBase), b.last_copy,
                 &thread);
    b.copies = 0;
  }
  ++b.phase;
  b.pending = b.count;
  b.clock.raise(b.actor, b.phase);
  b.ended = std::make_shared<const Clock>(b.clock);
  for (Thread* waiter : std::exchange(b.waiting, {})) machine.wake(*waiter);
}

void take_arrival(Thread& thread, const MbarrierAt& at, Place place) {
  Mbarrier& b = *at.barrier;
  if (b.pending == 0) {
    thread.machine->find(
        Hazard::mbarrier_misuse, place,
        fmt::format("one arrival too many: the phase had its {} and waits for {} bytes", b.count,
                    b.bytes),
        fmt::format("mbarrier {:#x}", at.offset + SharedMemory::kBase), {}, &thread);
    return;
  }
  --b.pending;
  end_phase_if_complete(thread, at, place);
}

}  // namespace

bool covers(const Clock& clock, const PastWait& wait) {
  if (clock.at(wait.thread->known.self()) >= wait.number) return true;
  const auto& lanes = wait.thread->warp->lanes;
  for (std::size_t i = 0; i < wait.met.size(); ++i)
    if (clock.at(lanes[i]->known.self()) >= wait.met[i]) return true;
  return false;
}

std::string describe(const Mbarrier& b) {
  std::string text =
      fmt::format("its phase {} lacks {} of {} arrivals", b.phase, b.pending, b.count);
  if (b.bytes > 0) text += fmt::format(" and {} bytes", b.bytes);
  if (b.bytes < 0) text += fmt::format(" and had {} bytes more than were expected", -b.bytes);
  return text;
}

MbarrierAt mbarrier_at(Thread& thread, Place place, std::uint32_t address, Reach reach) {
  Machine& machine = *thread.machine;
  const auto where = [&] { return fmt::format("mbarrier {:#x}", address); };
  const auto found = locate(thread, place, address, 8, 8);
  if (!found) machine.stop(Hazard::mbarrier_misuse, place, "no mbarrier can be there", where());
  const auto entry = found->cta->mbarriers.find(found->offset);
  if (entry == found->cta->mbarriers.end())
    machine.stop(Hazard::mbarrier_misuse, place, "it was not initialised, or is no more", where());
  Mbarrier& b = entry->second;
  // From another CTA or the async proxy, the initialisation must have been fenced; the fence also
  // proves that it happened.
  const bool fenced = thread.cluster().init_fenced(b.init, thread.known);
  const bool known = fenced || thread.known.covers(b.init.actor, b.init.number);
  if (!known || (reach == Reach::far && !fenced))
    machine.find(Hazard::mbarrier_misuse, place,
                 known ? "its initialisation was not fenced (fence.mbarrier_init or "
                         "fence.proxy.async) for use by a copy or another CTA"
                       : "no barrier stands between its initialisation and this use",
                 where(), b.init.place, &thread);
  return {found->cta, found->offset, &b};
}

void mbarrier_arrive(Thread& thread, const MbarrierAt& at, Place place) {
  const Mbarrier& b = *at.barrier;
  if (b.phase > 0 && !thread.known.covers(b.actor, b.phase))
    thread.machine->find(Hazard::mbarrier_misuse, place,
                         "the arrival may count for the phase before: nothing that the thread "
                         "waited for comes after that phase's end",
                         fmt::format("mbarrier {:#x}", at.offset + SharedMemory::kBase), {},
                         &thread);
  thread.known.release_into(at.barrier->clock);
  take_arrival(thread, at, place);
}

void mbarrier_arrive_with(Thread& thread, const MbarrierAt& at, const Clock& clock, Place place) {
  at.barrier->clock.join(clock);
  take_arrival(thread, at, place);
}

void mbarrier_expect(const MbarrierAt& at, std::uint32_t bytes) { at.barrier->bytes += bytes; }

void mbarrier_complete(Thread& thread, const MbarrierAt& at, std::uint32_t bytes, Place place) {
  at.barrier->bytes -= bytes;
  end_phase_if_complete(thread, at, place);
}

namespace {

bool is_over(const MbarrierAt& at, std::uint32_t parity) {
  return (at.barrier->phase & 1) != (parity & 1);
}

}  // namespace

void mbarrier_wait(const MbarrierAt& at, std::uint32_t parity, Place place) {
  Thread& t = self();
  while (!is_over(at, parity)) {
    at.barrier->waiting.push_back(&t);
    t.machine->block({Wait::For::mbarrier, place, at.offset, parity});
  }
  t.known.acquire(at.barrier->ended);
  const auto past = std::make_shared<PastWait>(PastWait{&t, t.known.now(), place, {}});
  at.barrier->seen.push_back(past);
  t.warp->past_waits.push_back(past);
}

bool mbarrier_test(const MbarrierAt& at, std::uint32_t parity, Place place) {
  if (!is_over(at, parity)) return false;
  mbarrier_wait(at, parity, place);
  return true;
}

}  // namespace octavo::emulator
