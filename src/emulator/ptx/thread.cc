// SPDX-License-Identifier: Apache-2.0
// Emulation of device/ptx/thread.cuh, term.cuh and f64.cuh: thread indices, barriers, shuffles,
// votes.
#include "device/ptx/thread.cuh"

#include "device/ptx/f64.cuh"
#include "device/ptx/term.cuh"
#include "emulator/machine.h"

namespace octavo::ptx {

using namespace emulator;

namespace {

template <class T>
struct ValueLane {
  T value;
  T result;
};

template <class T>
T shuffled(T x, int mask, Site site) {
  ValueLane<T> lane{x, 0};
  meet({"shfl.sync.bfly", site}, lane, [mask](Warp&, const auto& lanes) {
    for (std::size_t i = 0; i < kWarpSize; ++i)
      lanes[i]->result = lanes[i ^ static_cast<std::size_t>(mask)]->value;
  });
  return lane.result;
}

void sync(const char* name, int id, int count, Site site) {
  Thread& t = self();
  const Place place{name, site};
  if (t.machine->mutated(place)) return;
  t.barrier_opened = false;
  meet(place, t, [&](Warp& warp, const auto&) { arrive_at_barrier(warp, id, count, true, place); });
  if (!t.barrier_opened)
    t.machine->block({Wait::For::barrier, place, static_cast<std::uint32_t>(id)});
}

}  // namespace

void spare(const char* why) { self().spare = why; }
bool mask_term_is_off(Site site) { return self().machine->mutated({"mask term", site}); }

u32 thread_index() { return static_cast<u32>(self().index); }
int block_index_x() { return self().cta->block; }
int grid_size_x() { return static_cast<int>(self().machine->launch().blocks); }

u32 warp_index(Site site) {
  Thread& t = self();
  meet({"shfl.sync.idx", site}, t, [](Warp&, const auto&) {});
  return static_cast<u32>(t.warp->index);
}

void cta_sync(Site site) { sync("bar.sync", 0, self().machine->launch().threads, site); }
void named_barrier_sync(int id, int count, Site site) { sync("bar.sync", id, count, site); }

float shuffle_xor(float x, int mask, Site site) { return shuffled(x, mask, site); }
i32 shuffle_xor(i32 x, int mask, Site site) { return shuffled(x, mask, site); }
double shuffle_xor_f64(double x, int mask, Site site) { return shuffled(x, mask, site); }

bool warp_any(bool x, Site site) {
  ValueLane<bool> lane{x, false};
  meet({"vote.sync.any", site}, lane, [](Warp&, const auto& lanes) {
    bool any = false;
    for (const auto* l : lanes) any = any || l->value;
    for (auto* l : lanes) l->result = any;
  });
  return lane.result;
}

}  // namespace octavo::ptx
