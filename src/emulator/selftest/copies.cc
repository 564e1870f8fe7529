// SPDX-License-Identifier: Apache-2.0
// Selftest kernels for mbarriers, TMA, bulk copies and the async proxy. In each, `right` adds the
// one thing that the faulty form lacks.
#include "device/ptx/warpgroup.cuh"
#include "emulator/selftest/kernels.h"

namespace octavo::emulator {
namespace {

using namespace selftest;

// --- TMA and bulk copies.

void tma_without_wait(const Memory& m, bool right) {
  make_mbarrier(1);
  load_box(m);
  if (right) ptx::mbarrier_wait(bar(), 0);
  ptx::load_shared_f32(tile() + me() * 4);
}

void tma_waited_for_the_last_phase(const Memory& m, bool right) {
  make_mbarrier(1);
  load_box(m);
  // Parity 1 is the phase before the first, which counts as ended.
  ptx::mbarrier_wait(bar(), right ? 0 : 1);
  ptx::load_shared_f32(tile() + me() * 4);
}

void tma_asked_for_and_not_waited_for(const Memory& m, bool right) {
  make_mbarrier(1);
  load_box(m);
  const bool there = ptx::mbarrier_test(bar(), 0);
  if (right && !there) ptx::mbarrier_wait(bar(), 0);
  ptx::load_shared_f32(tile() + me() * 4);
}

void store_under_tma(const Memory& m, bool right) {
  make_mbarrier(1);
  load_box(m);
  if (right) ptx::mbarrier_wait(bar(), 0);
  if (me() == 0) ptx::store_shared_b32(tile(), 1);
}

void bulk_without_wait(const Memory& m, bool right) {
  make_mbarrier(1);
  if (me() == 0) {
    ptx::mbarrier_arrive_expect_tx(bar(), 256);
    ptx::bulk_load(tile(), m.in, 256, bar());
  }
  if (right) ptx::mbarrier_wait(bar(), 0);
  ptx::load_shared_f32(tile() + me() * 4);
}

void fill_box() {
  for (u32 i = me(); i < kBoxBytes / 4; i += 64) ptx::store_shared_b32(tile() + i * 4, i);
}

// Stores the box from shared to global memory.
void store_box(const Memory& m) {
  ptx::tma_store(&m.out_map, tile(), {0, 0});
  ptx::bulk_commit();
}

void source_of_a_store_reused(const Memory& m, bool right) {
  fill_box();
  ptx::fence_proxy_async();
  ptx::cta_sync();
  if (me() != 0) return;
  store_box(m);
  if (right) ptx::bulk_wait_read<0>();
  ptx::store_shared_b32(tile(), 1);
  ptx::bulk_wait<0>();
}

void bulk_store_without_commit(const Memory& m, bool right) {
  fill_box();
  ptx::fence_proxy_async();
  ptx::cta_sync();
  if (me() != 0) return;
  ptx::tma_store(&m.out_map, tile(), {0, 0});
  if (right) ptx::bulk_commit();
  ptx::bulk_wait<0>();
}

void exit_before_the_store(const Memory& m, bool right) {
  fill_box();
  ptx::fence_proxy_async();
  ptx::cta_sync();
  if (me() != 0) return;
  store_box(m);
  if (right) ptx::bulk_wait_read<0>();
}

void store_without_fence(const Memory& m, bool right) {
  fill_box();
  if (right) ptx::fence_proxy_async();
  ptx::cta_sync();
  if (me() != 0) return;
  store_box(m);
  ptx::bulk_wait<0>();
}

void fence_by_the_wrong_thread(const Memory& m, bool right) {
  fill_box();
  if (right) ptx::fence_proxy_async();
  ptx::cta_sync();
  if (me() != 0) return;
  ptx::fence_proxy_async();  // covers only this thread's writes
  store_box(m);
  ptx::bulk_wait<0>();
}

void load_over_stores_without_fence(const Memory& m, bool right) {
  make_mbarrier(1);
  fill_box();
  if (right) ptx::fence_proxy_async();
  ptx::cta_sync();
  load_box(m);
  ptx::mbarrier_wait(bar(), 0);
}

void box_misaligned(const Memory& m, bool right) {
  make_mbarrier(1);
  if (me() == 0) {
    ptx::mbarrier_arrive_expect_tx(bar(), kBoxBytes);
    ptx::tma_load(tile() + (right ? 0 : 64), &m.in_map, bar(), {0, 0});
  }
  if (right) ptx::mbarrier_wait(bar(), 0);
}

// --- mbarriers.

void mbarrier_before_its_init(const Memory&, bool right) {
  if (me() == 0) ptx::mbarrier_init(bar(), 1);
  if (right) ptx::cta_sync();
  if (me() == 32) ptx::mbarrier_arrive(bar());
}

void mbarrier_without_init_fence(const Memory& m, bool right) {
  if (me() == 0) {
    ptx::mbarrier_init(bar(), 1);
    if (right) ptx::fence_mbarrier_init();
  }
  ptx::cta_sync();
  load_box(m);
  ptx::mbarrier_wait(bar(), 0);
}

void too_many_arrivals(const Memory& m, bool right) {
  make_mbarrier(1);
  load_box(m);
  if (!right && me() == 0) ptx::mbarrier_arrive(bar());
  ptx::mbarrier_wait(bar(), 0);
}

// Warp 0 waits for two phases, which warp 1 ends; the second may end before every lane has seen the
// first.
void a_wait_overtaken(const Memory&, bool right) {
  const u32 full = bar(), empty = bar() + 8;
  if (me() == 0) {
    ptx::mbarrier_init(full, 1);
    ptx::mbarrier_init(empty, 1);
  }
  ptx::cta_sync();
  if (me() >= 32) {
    if (me() > 32) return;
    ptx::mbarrier_arrive(full);
    ptx::mbarrier_wait(empty, 0);
    ptx::mbarrier_arrive(full);
    return;
  }
  ptx::mbarrier_wait(full, 0);
  if (right) ptx::warp_sync();
  if (me() == 0) ptx::mbarrier_arrive(empty);
  ptx::mbarrier_wait(full, 1);
}

// Two threads arrive in each of two phases.
void an_arrival_too_early(const Memory&, bool right) {
  make_mbarrier(2);
  if (me() % 32 != 0) return;
  ptx::mbarrier_arrive(bar());
  if (right) ptx::mbarrier_wait(bar(), 0);
  ptx::mbarrier_arrive(bar());
}

void mbarrier_made_twice(const Memory&, bool right) {
  make_mbarrier(1);
  if (me() != 0) return;
  if (right) ptx::mbarrier_invalidate(bar());
  ptx::mbarrier_init(bar(), 2);
}

void mbarrier_overwritten(const Memory&, bool right) {
  make_mbarrier(1);
  if (me() != 0) return;
  if (right) ptx::mbarrier_invalidate(bar());
  ptx::store_shared_b32(bar(), 0);
}

void fewer_bytes_expected(const Memory& m, bool right) {
  make_mbarrier(1);
  if (me() == 0) {
    ptx::mbarrier_arrive_expect_tx(bar(), right ? 512 : 256);
    for (u32 i = 0; i < 2; ++i) ptx::bulk_load(tile() + i * 256, m.in, 256, bar());
  }
  ptx::mbarrier_wait(bar(), 0);
}

void more_bytes_expected(const Memory& m, bool right) {
  make_mbarrier(1);
  load_box(m, kBoxBytes + (right ? 0 : 16));
  ptx::mbarrier_wait(bar(), 0);
}

void one_arrival_short(const Memory&, bool right) {
  make_mbarrier(64);
  if (right || me() != 63) ptx::mbarrier_arrive(bar());
  ptx::mbarrier_wait(bar(), 0);
}

void arrive_before_the_copies(const Memory& m, bool right) {
  make_mbarrier(64);
  ptx::cp_async_16(tile() + me() * 16, m.in + me() * 4, true);
  if (right)
    ptx::mbarrier_arrive_after_cp_async(bar());
  else
    ptx::mbarrier_arrive(bar());
  ptx::mbarrier_wait(bar(), 0);
  ptx::load_shared_f32(tile() + (me() ^ 32) * 16);
}

void buffer_filled_before_it_is_empty(const Memory& m, bool right) {
  const u32 empty = bar() + 8;
  if (me() == 0) ptx::mbarrier_init(empty, 32);
  make_mbarrier(1);
  load_box(m);
  if (me() >= 32) {
    ptx::mbarrier_wait(bar(), 0);
    ptx::load_shared_f32(tile() + me() * 4);
    ptx::mbarrier_arrive(empty);
  } else if (me() == 0) {
    ptx::mbarrier_wait(bar(), 0);
    if (right) ptx::mbarrier_wait(empty, 0);
    load_box(m);
    ptx::mbarrier_wait(bar(), 1);
  }
}

}  // namespace

std::vector<SelftestCase> copy_selftest_cases() {
  using enum Hazard;
  return {
      {copy_in_flight, "TMA: no wait for the mbarrier", 64, tma_without_wait},
      {copy_in_flight, "TMA: a wait for the wrong phase", 64, tma_waited_for_the_last_phase},
      {copy_in_flight, "TMA: asked for, and no is not waited for", 64,
       tma_asked_for_and_not_waited_for},
      {copy_in_flight, "a store to bytes that TMA still writes", 64, store_under_tma},
      {copy_in_flight, "cp.async.bulk: no wait for the mbarrier", 64, bulk_without_wait},
      {copy_in_flight, "cp.async: mbarrier.arrive does not wait for it", 64,
       arrive_before_the_copies},
      {copy_in_flight, "TMA refills a buffer that a warp reads: no wait for it to be empty", 64,
       buffer_filled_before_it_is_empty},
      {operand_in_flight, "the source of a bulk store is written: no wait_group.read", 64,
       source_of_a_store_reused},
      {missing_proxy_fence, "TMA store: no fence.proxy.async", 64, store_without_fence},
      {missing_proxy_fence, "TMA store: the fence is not by the threads that wrote", 64,
       fence_by_the_wrong_thread},
      {missing_proxy_fence, "TMA load over stores: no fence.proxy.async", 64,
       load_over_stores_without_fence},
      {mbarrier_misuse, "mbarrier: used with no barrier after its init", 64,
       mbarrier_before_its_init},
      {mbarrier_misuse, "mbarrier: TMA uses it, no fence.mbarrier_init", 64,
       mbarrier_without_init_fence},
      {mbarrier_misuse, "mbarrier: an arrival too many", 64, too_many_arrivals},
      {mbarrier_misuse, "mbarrier: a wait that the next phase may overtake", 64, a_wait_overtaken},
      {mbarrier_misuse, "mbarrier: an arrival that may count for the phase before", 64,
       an_arrival_too_early},
      {mbarrier_misuse, "mbarrier: a second init, no inval", 64, mbarrier_made_twice},
      {mbarrier_misuse, "mbarrier: its bytes are written, no inval", 64, mbarrier_overwritten},
      {transaction_bytes, "mbarrier: fewer bytes expected than come", 64, fewer_bytes_expected},
      {deadlock, "mbarrier: more bytes expected than come", 64, more_bytes_expected},
      {deadlock, "mbarrier: an arrival too few", 64, one_arrival_short},
      {unfinished_store, "exit before a bulk store has read its source", 64, exit_before_the_store},
      {unfinished_store, "bulk store: no commit_group", 64, bulk_store_without_commit},
      {misaligned, "TMA into a tile at a multiple of 64 bytes", 64, box_misaligned},
  };
}

}  // namespace octavo::emulator
