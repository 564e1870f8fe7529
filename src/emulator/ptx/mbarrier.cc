// SPDX-License-Identifier: Apache-2.0
// Emulation of device/ptx/mbarrier.cuh.
#include "device/ptx/mbarrier.cuh"

#include <fmt/format.h>

#include "emulator/machine.h"
#include "emulator/memory/access.h"

namespace octavo::ptx {

using namespace emulator;

void mbarrier_init(u32 bar, u32 arrivals, Site site) {
  Thread& t = self();
  Machine& machine = *t.machine;
  const Place place{"mbarrier.init", site};
  const auto offset = shared_offset(t, place, bar, 8, 8);
  if (!offset) return;
  if (arrivals == 0 || arrivals >= 1u << 20)
    machine.stop(Hazard::mbarrier_misuse, place,
                 fmt::format("{} arrivals of 1 to 2^20 - 1", arrivals));
  if (t.cta->mbarriers.contains(*offset))
    machine.find(Hazard::mbarrier_misuse, place, "it is in use: no mbarrier.inval came before",
                 fmt::format("mbarrier {:#x}", bar), t.cta->mbarriers[*offset].init.place);
  t.cta->shared.write(t.by(place), *offset, 8);
  Mbarrier b;
  b.count = b.pending = arrivals;
  b.init = t.by(place).access;
  b.actor = t.cluster().new_actor(Acts::mbarrier, &t, bar);
  t.cta->mbarriers[*offset] = b;
  t.cta->shared.reserve(*offset, true);
}

void mbarrier_invalidate(u32 bar, Site site) {
  Thread& t = self();
  const Place place{"mbarrier.inval", site};
  if (t.machine->mutated(place)) return;
  const MbarrierAt at = mbarrier_at(t, place, bar, Reach::near);
  if (!at.barrier->waiting.empty())
    t.machine->find(Hazard::mbarrier_misuse, place, "threads still wait for it",
                    fmt::format("mbarrier {:#x}", bar));
  if (at.barrier->copies > 0)
    t.machine->stop(Hazard::mbarrier_misuse, place, "copies in flight complete on it",
                    fmt::format("mbarrier {:#x}", bar));
  at.cta->shared.reserve(at.offset, false);
  at.cta->mbarriers.erase(at.offset);
}

void mbarrier_arrive(u32 bar, Site site) {
  Thread& t = self();
  const Place place{"mbarrier.arrive", site};
  if (t.machine->mutated(place)) return;
  emulator::mbarrier_arrive(t, mbarrier_at(t, place, bar, Reach::near), place);
}

void mbarrier_expect_tx(u32 bar, u32 bytes, Site site) {
  Thread& t = self();
  const Place place{"mbarrier.expect_tx", site};
  if (t.machine->mutated(place)) return;
  mbarrier_expect(mbarrier_at(t, place, bar, Reach::near), bytes);
}

void mbarrier_arrive_expect_tx(u32 bar, u32 bytes, Site site) {
  Thread& t = self();
  const Place place{"mbarrier.arrive.expect_tx", site};
  if (t.machine->mutated(place)) return;
  const MbarrierAt at = mbarrier_at(t, place, bar, Reach::near);
  mbarrier_expect(at, bytes);
  emulator::mbarrier_arrive(t, at, place);
}

void mbarrier_arrive_after_cp_async(u32 bar, Site site) {
  Thread& t = self();
  const Place place{"cp.async.mbarrier.arrive.noinc", site};
  if (t.machine->mutated(place)) return;
  const MbarrierAt at = mbarrier_at(t, place, bar, Reach::near);
  const u32 last = t.copies.last();
  t.cluster().async.start({[&t, at, last, place] {
                             t.copies.complete_to(last, t.cta->shared);
                             Clock clock;
                             if (t.copies.actor != kNobody) clock.raise(t.copies.actor, last);
                             mbarrier_arrive_with(t, at, clock, place);
                           },
                           &t, 0});
}

void mbarrier_arrive_remote(u32 remote, Site site) {
  Thread& t = self();
  const Place place{"mbarrier.arrive.shared::cluster", site};
  if (t.machine->mutated(place)) return;
  emulator::mbarrier_arrive(t, mbarrier_at(t, place, remote, Reach::far), place);
}

void mbarrier_arrive_expect_tx_remote(u32 remote, u32 bytes, Site site) {
  Thread& t = self();
  const Place place{"mbarrier.arrive.expect_tx.shared::cluster", site};
  if (t.machine->mutated(place)) return;
  const MbarrierAt at = mbarrier_at(t, place, remote, Reach::far);
  mbarrier_expect(at, bytes);
  emulator::mbarrier_arrive(t, at, place);
}

// As a mutant it returns true without having waited.
bool mbarrier_test(u32 bar, u32 parity, Site site) {
  Thread& t = self();
  const Place place{"mbarrier.test_wait", site};
  if (t.machine->mutated(place)) return true;
  return emulator::mbarrier_test(mbarrier_at(t, place, bar, Reach::near), parity, place);
}

// Waits for the end of the phase, because a polling thread would do nothing else.
bool mbarrier_try_wait(u32 bar, u32 parity, Site site) {
  mbarrier_wait(bar, parity, site);
  return true;
}

void mbarrier_wait(u32 bar, u32 parity, Site site) {
  Thread& t = self();
  const Place place{"mbarrier.try_wait", site};
  if (t.machine->mutated(place)) return;
  emulator::mbarrier_wait(mbarrier_at(t, place, bar, Reach::near), parity, place);
}

void mbarrier_wait_cluster(u32 bar, u32 parity, Site site) { mbarrier_wait(bar, parity, site); }

}  // namespace octavo::ptx
