// SPDX-License-Identifier: Apache-2.0
// Emulation of device/ptx/wgmma.cuh and warpgroup.cuh.
#include "device/ptx/wgmma.cuh"

#include <fmt/format.h>

#include "device/ptx/warpgroup.cuh"
#include "emulator/machine.h"

namespace octavo::ptx {

using namespace emulator;

namespace {

void issue(const WgmmaShape& shape, WgmmaLane lane, u64 a, u64 b, bool accumulate, Site site) {
  const Place place{"wgmma", site};
  meet(place, lane, [&](Warp& warp, const std::array<WgmmaLane*, kWarpSize>& lanes) {
    Machine& machine = *warp.lanes[0]->machine;
    follow_warpgroup(warp, place);
    if (machine.launch().arch != 90)
      machine.stop(Hazard::unknown_instruction, place, "wgmma needs sm_90a");
    WgmmaOperation op;
    op.shape = shape;
    op.a = a;
    op.b = b;
    op.accumulate = accumulate;
    op.a_in_registers = lane.a != nullptr;
    op.place = place;
    for (std::size_t i = 0; i < kWarpSize; ++i) op.lanes[i] = *lanes[i];
    start_wgmma(warp, op);
  });
}

// A lane acquires the knowledge of the other lanes of its warp.
void join_warp(Warp& warp) {
  Clock clock;
  for (Thread* lane : warp.lanes) lane->known.release_into(clock);
  const auto shared = std::make_shared<const Clock>(std::move(clock));
  for (Thread* lane : warp.lanes) lane->known.replace(shared);
}

void give_registers(Cta& cta, Machine& machine) {
  for (const auto& thread : cta.threads)
    if (thread->wait.what == Wait::For::registers) machine.wake(*thread);
}

void set_registers(const char* name, int registers, bool more, Site site) {
  Thread& t = self();
  Machine& machine = *t.machine;
  const Place place{name, site};
  Cta& cta = *t.cta;
  Warp& warp = *t.warp;
  if (registers < 24 || registers > 256 || registers % 8 != 0)
    machine.stop(Hazard::register_budget, place,
                 fmt::format("{} registers: not a multiple of 8 from 24 to 256", registers));
  meet(place, t, [&](Warp& w, const auto&) {
    if (more ? registers < w.registers : registers > w.registers)
      machine.find(
          Hazard::register_budget, place,
          fmt::format("{} {} registers where a thread has {}", name, registers, w.registers));
    if (!more) {
      cta.free_registers += (w.registers - registers) * kWarpSize;
      w.registers = registers;
      give_registers(cta, machine);
    }
  });
  if (!more) return;
  while (warp.registers < registers &&
         (registers - warp.registers) * kWarpSize > cta.free_registers)
    machine.block({Wait::For::registers, place, static_cast<u32>(registers)});
  if (warp.registers < registers) {  // the first lane to arrive takes them for its warp
    cta.free_registers -= (registers - warp.registers) * kWarpSize;
    warp.registers = registers;
  }
}

}  // namespace

void wgmma(const WgmmaShape& shape, void* d, u64 a, u64 b, bool accumulate, Site site) {
  issue(shape, {d, nullptr}, a, b, accumulate, site);
}
void wgmma(const WgmmaShape& shape, void* d, const u32 (&a)[4], u64 b, bool accumulate, Site site) {
  issue(shape, {d, a}, 0, b, accumulate, site);
}

void wgmma_fence(Site site) {
  Thread& t = self();
  const Place place{"wgmma.fence", site};
  if (t.machine->mutated(place)) return;
  meet(place, t, [&](Warp& warp, const auto&) {
    follow_warpgroup(warp, place);
    fence_wgmma(warp);
  });
}
void wgmma_commit(Site site) {
  Thread& t = self();
  const Place place{"wgmma.commit_group", site};
  if (t.machine->mutated(place)) return;
  meet(place, t, [&](Warp& warp, const auto&) {
    follow_warpgroup(warp, place);
    ++warp.wgmma.open;
  });
}
template <int kPending>
void wgmma_wait(Site site) {
  Thread& t = self();
  const Place place{"wgmma.wait_group", site};
  if (t.machine->mutated(place)) return;
  meet(place, t, [&](Warp& warp, const auto&) {
    follow_warpgroup(warp, place);
    wait_wgmma(warp, kPending);
  });
}
template void wgmma_wait<0>(Site);
template void wgmma_wait<1>(Site);
template void wgmma_wait<2>(Site);
template void wgmma_wait<3>(Site);
template void wgmma_wait<4>(Site);

void pin_registers(const void* first, u32 bytes, Site site) {
  pin_wgmma_registers(first, bytes, {"pin", site});
}

template <int kRegisters>
void increase_registers(Site site) {
  set_registers("setmaxnreg.inc", kRegisters, true, site);
}
template <int kRegisters>
void decrease_registers(Site site) {
  set_registers("setmaxnreg.dec", kRegisters, false, site);
}
#define OCTAVO_REGISTERS(n)                  \
  template void increase_registers<n>(Site); \
  template void decrease_registers<n>(Site);
// clang-format off
OCTAVO_REGISTERS(24) OCTAVO_REGISTERS(32) OCTAVO_REGISTERS(40) OCTAVO_REGISTERS(48)
OCTAVO_REGISTERS(56) OCTAVO_REGISTERS(64) OCTAVO_REGISTERS(72) OCTAVO_REGISTERS(80)
OCTAVO_REGISTERS(88) OCTAVO_REGISTERS(96) OCTAVO_REGISTERS(104) OCTAVO_REGISTERS(112)
OCTAVO_REGISTERS(120) OCTAVO_REGISTERS(128) OCTAVO_REGISTERS(136) OCTAVO_REGISTERS(144)
OCTAVO_REGISTERS(152) OCTAVO_REGISTERS(160) OCTAVO_REGISTERS(168) OCTAVO_REGISTERS(176)
OCTAVO_REGISTERS(184) OCTAVO_REGISTERS(192) OCTAVO_REGISTERS(200) OCTAVO_REGISTERS(208)
OCTAVO_REGISTERS(216) OCTAVO_REGISTERS(224) OCTAVO_REGISTERS(232) OCTAVO_REGISTERS(240)
OCTAVO_REGISTERS(248) OCTAVO_REGISTERS(256)
// clang-format on
#undef OCTAVO_REGISTERS

                                    bool elect_one(Site site) {
  Thread& t = self();
  meet({"elect.sync", site}, t, [](Warp&, const auto&) {});
  return t.lane == 0;
}

void named_barrier_arrive(int id, int count, Site site) {
  Thread& t = self();
  const Place place{"bar.arrive", site};
  if (t.machine->mutated(place)) return;
  meet(place, t,
       [&](Warp& warp, const auto&) { arrive_at_barrier(warp, id, count, false, place); });
}

void warp_sync(Site site) {
  Thread& t = self();
  const Place place{"bar.warp.sync", site};
  if (t.machine->mutated(place)) return;
  meet(place, t, [](Warp& warp, const auto&) { join_warp(warp); });
}

void wait_for_earlier_grids(Site site) {
  Thread& t = self();
  // Only a programmatic launch starts before the grids it depends on have ended.
  const bool useful = t.machine->launch().programmatic;
  if (t.machine->mutated({"griddepcontrol.wait", site}, useful)) return;
  t.known.learn(t.cluster().earlier_grids, 1);
}
void launch_dependent_grids(Site /*site*/) {}

}  // namespace octavo::ptx
