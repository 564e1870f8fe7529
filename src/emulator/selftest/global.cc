// SPDX-License-Identifier: Apache-2.0
// Selftest kernels for global memory: races inside a CTA and between CTAs, flags, bulk reductions.
// In each, `right` adds the one thing that the faulty form lacks.
#include "device/ptx/atomic.cuh"
#include "device/ptx/warpgroup.cuh"
#include "emulator/selftest/kernels.h"

namespace octavo::emulator {
namespace {

using namespace selftest;

constexpr u32 kCopyBytes = 256;

u32 block() { return static_cast<u32>(ptx::block_index_x()); }
const i32* as_ints(const u32* p) { return reinterpret_cast<const i32*>(p); }
u32* flag_of(const Memory& m) { return m.out + kSelftestWords - 1; }

void wait_for(const u32* flag, u32 value) {
  while (ptx::ld_acquire(flag) < value) {
  }
}

// --- Races.

void two_warps_write(const Memory& m, bool right) {
  if (me() == 0) ptx::store_global_b32(m.out, 1);
  if (right) ptx::cta_sync();
  if (me() == 32) ptx::store_global_b32(m.out, 2);
}

void two_warps_write_bytes(const Memory& m, bool right) {
  if (me() == 0) ptx::store_global_b16(m.out, 1);
  if (right) ptx::cta_sync();
  if (me() == 32) ptx::store_global_b8(reinterpret_cast<u8*>(m.out) + 1, 2);
}

void another_warp_reads(const Memory& m, bool right) {
  ptx::store_global_b32(m.out + me(), 1);
  if (right) ptx::cta_sync();
  ptx::load_coherent_i32(as_ints(m.out) + (me() ^ 32));
}

void overwritten_under_a_warp(const Memory& m, bool right) {
  ptx::load_coherent_i32(as_ints(m.out) + (me() ^ 32));
  if (right) ptx::cta_sync();
  ptx::store_global_b32(m.out + me(), 1);
}

void two_ctas_write(const Memory& m, bool right) {
  if (me() == 0) ptx::store_global_b32(m.out + (right ? block() : 0), 1);
}

void maximum_without_an_atomic(const Memory& m, bool right) {
  auto* const amax = reinterpret_cast<float*>(m.out);
  if (me() != 0) return;
  if (right)
    ptx::atomic_max(amax, block());
  else
    ptx::store_global_b32(amax, ptx::load_written_f32(amax) < 1.0f ? block() : 0);
}

void maximum_read_before_a_barrier(const Memory& m, bool right) {
  auto* const amax = reinterpret_cast<float*>(m.out);
  ptx::atomic_max(amax, me());
  if (right) ptx::cta_sync();
  if (me() == 0) ptx::load_coherent_i32(as_ints(m.out));
}

void non_coherent_in_an_early_launch(const Memory& m, bool right) {
  ptx::wait_for_earlier_grids();
  if (right)
    ptx::load_coherent_i32(as_ints(m.in) + me());
  else
    ptx::load_global_i32(as_ints(m.in) + me());
}

void non_coherent_of_own_writes(const Memory& m, bool right) {
  ptx::store_global_b32(m.out + me(), 1);
  ptx::cta_sync();
  if (right)
    ptx::load_coherent_i32(as_ints(m.out) + (me() ^ 32));
  else
    ptx::load_global_i32(as_ints(m.out) + (me() ^ 32));
}

// --- Flags. CTA 0 writes, CTA 1 reads.

void result_without_a_flag(const Memory& m, bool right) {
  if (block() == 0) {
    ptx::store_global_b32(m.out + me(), 1);
    ptx::cta_sync();
    if (me() == 0) ptx::red_release_add(flag_of(m), 1);
    return;
  }
  if (right && me() == 0) wait_for(flag_of(m), 1);
  ptx::cta_sync();
  ptx::load_coherent_i32(as_ints(m.out) + me());
}

void flag_before_a_barrier(const Memory& m, bool right) {
  if (block() == 0) {
    ptx::store_global_b32(m.out + me(), 1);
    if (right) ptx::cta_sync();
    if (me() == 0) ptx::red_release_add(flag_of(m), 1);
    return;
  }
  if (me() == 0) wait_for(flag_of(m), 1);
  ptx::cta_sync();
  ptx::load_coherent_i32(as_ints(m.out) + me());
}

void flag_of_another_cta(const Memory& m, bool right) {
  if (me() != 0) return;
  // CTA 1 reads what CTA 0 wrote, and CTA 2 only waits for CTA 1.
  if (block() == 0) {
    ptx::store_global_b32(m.out, 1);
    ptx::red_release_add(flag_of(m), 1);
  } else if (block() == 1) {
    if (right) wait_for(flag_of(m), 1);
    ptx::red_release_add(flag_of(m) - 1, 1);
  } else {
    wait_for(flag_of(m) - 1, 1);
    ptx::load_coherent_i32(as_ints(m.out));
  }
}

void flag_that_nobody_sets(const Memory& m, bool right) {
  if (me() != 0) return;
  if (block() == 1) wait_for(flag_of(m), right ? 1 : 2);
  if (block() == 0) ptx::red_release_add(flag_of(m), 1);
}

// --- Bulk copies to global memory.

void fill_tile() {
  ptx::store_shared_b32(tile() + me() * 4, 0x3f800000);
  ptx::fence_proxy_async();
  ptx::cta_sync();
}

void reduction_that_has_only_read(const Memory& m, bool right) {
  if (block() == 1) {
    if (me() == 0) wait_for(flag_of(m), 1);
    ptx::cta_sync();
    ptx::load_coherent_i32(as_ints(m.out) + me());
    return;
  }
  fill_tile();
  if (me() != 0) return;
  ptx::bulk_reduce_add_f32(m.out, tile(), kCopyBytes);
  ptx::bulk_commit();
  ptx::bulk_wait_read<0>();
  if (right) ptx::bulk_wait<0>();
  ptx::red_release_add(flag_of(m), 1);
}

void stores_in_place_of_reductions(const Memory& m, bool right) {
  fill_tile();
  if (me() != 0) return;
  if (right)
    ptx::bulk_reduce_add_f32(m.out, tile(), kCopyBytes);
  else
    ptx::bulk_store(m.out, tile(), kCopyBytes);
  ptx::bulk_commit();
  ptx::bulk_wait<0>();
}

void source_of_a_reduction_reused(const Memory& m, bool right) {
  fill_tile();
  if (me() != 0) return;
  ptx::bulk_reduce_add_f32(m.out, tile(), kCopyBytes);
  ptx::bulk_commit();
  if (right) ptx::bulk_wait_read<0>();
  ptx::store_shared_b32(tile(), 1);
  ptx::bulk_wait<0>();
}

void reduction_over_stores_of_threads(const Memory& m, bool right) {
  ptx::store_global_b32(m.out + me(), 0);
  if (right) ptx::fence_proxy_async_all();
  fill_tile();  // its fence is for shared memory only
  if (me() != 0) return;
  ptx::bulk_reduce_add_f32(m.out, tile(), kCopyBytes);
  ptx::bulk_commit();
  ptx::bulk_wait<0>();
}

// The fence may also be on the side of the thread that starts the copy, after a flag.
void load_of_what_another_cta_stored(const Memory& m, bool right) {
  if (block() == 0) {
    ptx::store_global_b32(m.out + me(), 1);
    ptx::cta_sync();
    if (me() == 0) ptx::red_release_add(flag_of(m), 1);
    return;
  }
  make_mbarrier(1);
  if (me() == 0) {
    wait_for(flag_of(m), 1);
    if (right) ptx::fence_proxy_async_all();
    ptx::mbarrier_arrive_expect_tx(bar(), kCopyBytes);
    ptx::bulk_load(tile(), m.out, kCopyBytes, bar());
  }
  ptx::mbarrier_wait(bar(), 0);
}

void reduction_misaligned(const Memory& m, bool right) {
  fill_tile();
  if (me() != 0) return;
  ptx::bulk_reduce_add_f32(m.out + (right ? 0 : 1), tile(), kCopyBytes - 16);
  ptx::bulk_commit();
  ptx::bulk_wait<0>();
}

}  // namespace

std::vector<SelftestCase> global_selftest_cases() {
  using enum Hazard;
  std::vector<SelftestCase> cases = {
      {write_write_race, "global memory: two warps write a word, no barrier", 64, two_warps_write},
      {write_write_race, "global memory: one byte of a word, no barrier", 64,
       two_warps_write_bytes},
      {read_write_race, "global memory: another warp reads, no barrier", 64, another_warp_reads},
      {read_write_race, "global memory: overwritten while a warp reads, no barrier", 64,
       overwritten_under_a_warp},
      {read_write_race, "global memory: an atomic result is read, no barrier", 64,
       maximum_read_before_a_barrier},
      {non_coherent_read, "ld.global.nc in a launch that may start early", 64,
       non_coherent_in_an_early_launch, 1, true},
      {non_coherent_read, "ld.global.nc of memory that the grid writes", 64,
       non_coherent_of_own_writes},
      {operand_in_flight, "the source of a bulk reduction is written: no wait_group.read", 64,
       source_of_a_reduction_reused},
      {missing_proxy_fence, "bulk reduction over stores of threads: no fence.proxy.async", 64,
       reduction_over_stores_of_threads},
      {misaligned, "bulk reduction at a multiple of 4 bytes", 64, reduction_misaligned},
  };
  const auto add = [&](Hazard hazard, const char* what, auto* kernel, int blocks) {
    SelftestCase test{hazard, what, 64, kernel};
    test.blocks = blocks;
    cases.push_back(test);
  };
  add(write_write_race, "two CTAs write a word of global memory", two_ctas_write, 2);
  add(write_write_race, "two CTAs compute a maximum without an atomic", maximum_without_an_atomic,
      2);
  add(read_write_race, "another CTA's result: no ld.acquire of its flag", result_without_a_flag, 2);
  add(read_write_race, "a flag is set before a barrier of the writers", flag_before_a_barrier, 2);
  add(read_write_race, "a flag of a CTA that has not waited for the writer", flag_of_another_cta,
      3);
  add(deadlock, "a flag that nobody sets", flag_that_nobody_sets, 2);
  add(copy_in_flight, "bulk reduction: the flag is set after wait_group.read",
      reduction_that_has_only_read, 2);
  add(copy_in_flight, "bulk stores of two CTAs to the same bytes", stores_in_place_of_reductions,
      2);
  add(missing_proxy_fence, "bulk load of another CTA's stores: no fence.proxy.async",
      load_of_what_another_cta_stored, 2);
  return cases;
}

}  // namespace octavo::emulator
