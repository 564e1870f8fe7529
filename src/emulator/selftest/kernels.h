// SPDX-License-Identifier: Apache-2.0
// Shared by the selftest kernels: the shared-memory layout, an mbarrier, a box.
#pragma once

#include "device/ptx/fence.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/tma.cuh"
#include "emulator/selftest/selftest.h"

namespace octavo::emulator::selftest {

using Memory = SelftestMemory;

inline constexpr u32 kBoxBytes = 1024;  // of the tensor maps

inline u32 me() { return ptx::thread_index(); }
inline u32 bar() { return ptx::shared_base(); }
inline u32 tile() { return ptx::shared_base() + 1024; }

inline void make_mbarrier(u32 arrivals) {
  if (me() == 0) {
    ptx::mbarrier_init(bar(), arrivals);
    ptx::fence_mbarrier_init();
  }
  ptx::cta_sync();
}

inline void load_box(const Memory& m, u32 expected = kBoxBytes) {
  if (me() != 0) return;
  ptx::mbarrier_arrive_expect_tx(bar(), expected);
  ptx::tma_load(tile(), &m.in_map, bar(), {0, 0});
}

}  // namespace octavo::emulator::selftest
