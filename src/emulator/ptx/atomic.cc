// SPDX-License-Identifier: Apache-2.0
// Emulation of device/ptx/atomic.cuh: atomic operations on global memory, and flags between CTAs.
#include "device/ptx/atomic.cuh"

#include <algorithm>
#include <cstring>

#include "emulator/memory/access.h"

namespace octavo::ptx {

using namespace emulator;

namespace {

// Applies `change` to a word. This is atomic, as threads are switched only when they wait.
template <class Change>
void update(Place place, void* p, GlobalUse use, const Change& change) {
  Thread& t = self();
  u32 word;
  std::memcpy(&word, p, 4);
  const u32 changed = change(word);
  t.machine->measures().access(t.warp->measured_as, t.lane, place, false,
                               reinterpret_cast<std::uintptr_t>(p), 4);
  t.machine->accesses().note(t.by(place), use, p, 4);
  if (changed == word) return;
  std::memcpy(p, &changed, 4);
  t.machine->note_change(p, 4);
}

}  // namespace

// As a mutant it is a load and a store.
void atomic_max(float* p, u32 x, Site site) {
  const Place place{"red.relaxed.gpu.global.max.u32", site};
  if (!global_allowed(place, p, 4, 4, GlobalMemory::Use::write)) return;
  const bool atomic = !self().machine->mutated(place);
  update(place, p, atomic ? GlobalUse::update : GlobalUse::write,
         [x](u32 there) { return std::max(there, x); });
}

// As a mutant it releases nothing.
void red_release_add(u32* p, u32 x, Site site) {
  Thread& t = self();
  const Place place{"red.release.gpu.global.add.u32", site};
  if (!global_allowed(place, p, 4, 4, GlobalMemory::Use::write)) return;
  update(place, p, GlobalUse::update, [x](u32 there) { return there + x; });
  if (!t.machine->mutated(place)) t.machine->flags().release(t, p);
}

// As a mutant it acquires nothing.
u32 ld_acquire(const u32* p, Site site) {
  Thread& t = self();
  const Place place{"ld.acquire.gpu.global.u32", site};
  if (!global_allowed(place, p, 4, 4, GlobalMemory::Use::read)) return 0;
  wait_for_flag(p, place);
  t.machine->accesses().note(t.by(place), GlobalUse::strong_read, p, 4);
  if (!t.machine->mutated(place)) t.machine->flags().acquire(t, p);
  t.poll = {p, *p};
  return *p;
}

}  // namespace octavo::ptx
