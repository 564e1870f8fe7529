// SPDX-License-Identifier: Apache-2.0
// Selftest kernels for wgmma, clusters and setmaxnreg. In each, `right` adds the one thing that the
// faulty form lacks.
#include "device/ptx/cluster.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/ptx/wgmma_f16.cuh"
#include "device/tile/matrix_descriptor.cuh"
#include "emulator/selftest/kernels.h"

namespace octavo::emulator {
namespace {

using namespace selftest;

// --- wgmma: D (64 x 8) = A B, both in shared memory: 64 rows of A, 8 of B, 128 bytes each.

u32 tile_b() { return tile() + 8192; }

void fill_operands() {
  for (u32 i = me(); i < (8192 + 1024) / 4; i += 128) ptx::store_shared_b32(tile() + i * 4, 0);
}
void operands_ready() {
  fill_operands();
  ptx::fence_proxy_async();
  ptx::cta_sync();
}
void product(float (&d)[4], bool accumulate = false) {
  ptx::wgmma_f16<false, false>(d, k_major(tile()), k_major(tile_b()), accumulate);
}
void finish(float (&d)[4]) {
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin(d);
}

void wgmma_without_fence(const Memory&, bool right) {
  operands_ready();
  float d[4] = {};
  ptx::pin(d);
  if (right) ptx::wgmma_fence();
  product(d);
  finish(d);
}

void accumulator_written_after_the_fence(const Memory&, bool right) {
  operands_ready();
  float d[4] = {};
  ptx::pin(d);
  if (!right) ptx::wgmma_fence();
  d[0] = 1;
  if (right) ptx::wgmma_fence();
  product(d, true);
  finish(d);
}

void wgmma_without_commit(const Memory&, bool right) {
  operands_ready();
  float d[4] = {};
  ptx::pin(d);
  ptx::wgmma_fence();
  product(d);
  if (right) ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
}

void wgmma_never_waited_for(const Memory&, bool right) {
  operands_ready();
  float d[4] = {};
  ptx::pin(d);
  ptx::wgmma_fence();
  product(d);
  ptx::wgmma_commit();
  if (right) ptx::wgmma_wait<0>();
}

void accumulator_read_in_flight(const Memory&, bool right) {
  operands_ready();
  float d[4] = {};
  ptx::pin(d);
  ptx::wgmma_fence();
  product(d);
  ptx::wgmma_commit();
  if (right) ptx::wgmma_wait<0>();
  ptx::pin(d);
  ptx::wgmma_wait<0>();
}

void accumulator_changed_in_flight(const Memory&, bool right) {
  operands_ready();
  float d[4] = {};
  ptx::pin(d);
  ptx::wgmma_fence();
  product(d);
  ptx::wgmma_commit();
  if (right) ptx::wgmma_wait<0>();
  d[0] = 1;
  ptx::wgmma_wait<0>();
}

void a_changed_in_flight(const Memory&, bool right) {
  operands_ready();
  float d[4] = {};
  u32 a[4] = {};
  ptx::pin(d);
  ptx::pin(a);
  ptx::wgmma_fence();
  ptx::wgmma_f16<false>(d, a, k_major(tile_b()), false);
  ptx::wgmma_commit();
  if (right) ptx::wgmma_wait<0>();
  a[0] = 1;
  ptx::wgmma_wait<0>();
}

void operand_overwritten_in_flight(const Memory&, bool right) {
  operands_ready();
  float d[4] = {};
  ptx::pin(d);
  ptx::wgmma_fence();
  product(d);
  ptx::wgmma_commit();
  if (right) {
    ptx::wgmma_wait<0>();
    ptx::cta_sync();
  }
  if (me() == 0) ptx::store_shared_b32(tile_b(), 1);
  ptx::wgmma_wait<0>();
}

void wgmma_without_proxy_fence(const Memory&, bool right) {
  fill_operands();
  if (right) ptx::fence_proxy_async();
  ptx::cta_sync();
  float d[4] = {};
  ptx::pin(d);
  ptx::wgmma_fence();
  product(d);
  finish(d);
}

void wgmma_before_the_copy(const Memory& m, bool right) {
  make_mbarrier(1);
  operands_ready();
  load_box(m);
  if (right) ptx::mbarrier_wait(bar(), 0);
  float d[4] = {};
  ptx::pin(d);
  ptx::wgmma_fence();
  product(d);
  finish(d);
}

void three_warps_of_four(const Memory&, bool right) {
  operands_ready();
  if (!right && me() >= 96) return;
  float d[4] = {};
  ptx::pin(d);
  ptx::wgmma_fence();
  product(d);
  finish(d);
}

void one_warp_waits_first(const Memory&, bool right) {
  operands_ready();
  float d[4] = {};
  ptx::pin(d);
  ptx::wgmma_fence();
  product(d);
  ptx::wgmma_commit();
  if (right || me() < 32) ptx::wgmma_wait<0>();
  ptx::wgmma_wait<0>();
  ptx::pin(d);
}

void descriptor_out_of_bounds(const Memory&, bool right) {
  operands_ready();
  float d[4] = {};
  ptx::pin(d);
  ptx::wgmma_fence();
  ptx::wgmma_f16<false, false>(d, k_major(tile()),
                               k_major(right ? tile_b() : bar() + kSelftestSmemBytes), false);
  finish(d);
}

// --- Clusters of two.

void cluster_sync() {
  ptx::cluster_arrive();
  ptx::cluster_wait();
}
u32 peer() { return ptx::cluster_cta_rank() ^ 1; }

void peer_before_it_starts(const Memory&, bool right) {
  ptx::store_shared_b32(tile() + me() * 4, 1);
  if (right) cluster_sync();
  ptx::load_remote_f32(ptx::map_to_cta(tile(), peer()));
  cluster_sync();
}

void peer_may_have_ended(const Memory&, bool right) {
  ptx::store_shared_b32(tile() + me() * 4, 1);
  cluster_sync();
  ptx::load_remote_f32(ptx::map_to_cta(tile(), peer()));
  if (right) cluster_sync();
}

void peer_read_without_release(const Memory&, bool right) {
  ptx::store_shared_b32(tile() + me() * 4, 1);
  if (right)
    ptx::cluster_arrive();
  else
    ptx::cluster_arrive_relaxed();
  ptx::cluster_wait();
  ptx::load_remote_f32(ptx::map_to_cta(tile() + me() * 4, peer()));
  cluster_sync();
}

void mail(const Memory&, bool right) {
  if (me() == 0) {
    ptx::mbarrier_init(bar(), 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(bar(), 4);
  }
  cluster_sync();
  if (me() == 0)
    ptx::st_async_b32(ptx::map_to_cta(tile(), peer()), 1, ptx::map_to_cta(bar(), peer()));
  if (right) ptx::mbarrier_wait_cluster(bar(), 0);
  if (me() == 0) ptx::load_shared_f32(tile());
  if (!right) ptx::mbarrier_wait_cluster(bar(), 0);
  cluster_sync();
}

void remote_mbarrier_without_init_fence(const Memory&, bool right) {
  if (me() == 0) {
    ptx::mbarrier_init(bar(), 1);
    if (right) ptx::fence_mbarrier_init();
  }
  ptx::cluster_arrive_relaxed();
  ptx::cluster_wait();
  if (me() == 0) ptx::mbarrier_arrive_remote(ptx::map_to_cta(bar(), peer()));
  cluster_sync();
}

void cluster_arrives_twice(const Memory&, bool right) {
  ptx::cluster_arrive();
  if (right) ptx::cluster_wait();
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

void cta_beyond_the_cluster(const Memory&, bool right) {
  ptx::store_shared_b32(tile() + me() * 4, 1);
  cluster_sync();
  ptx::load_remote_f32(ptx::map_to_cta(tile(), right ? peer() : 2));
  cluster_sync();
}

void multicast_waited_for_here_alone(const Memory& m, bool right) {
  if (me() == 0) {
    ptx::mbarrier_init(bar(), 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(bar(), kBoxBytes);
  }
  cluster_sync();
  if (ptx::cluster_cta_rank() == 0 && me() == 0)
    ptx::tma_load_multicast(tile(), &m.in_map, bar(), {0, 0}, u16{3});
  if (right || ptx::cluster_cta_rank() == 0) ptx::mbarrier_wait_cluster(bar(), 0);
  ptx::load_shared_f32(tile() + me() * 4);
  ptx::mbarrier_wait_cluster(bar(), 0);
  cluster_sync();
}

// --- Registers.

void more_by_less(const Memory&, bool right) {
  if (right)
    ptx::decrease_registers<56>();
  else
    ptx::increase_registers<56>();
}

// Two warpgroups of 64 registers per thread.
void more_than_there_are(const Memory&, bool right) {
  if (me() < 128)
    ptx::decrease_registers<40>();
  else if (right)
    ptx::increase_registers<88>();
  else
    ptx::increase_registers<96>();
}

}  // namespace

std::vector<SelftestCase> warpgroup_selftest_cases() {
  using enum Hazard;
  return {
      {copy_in_flight, "wgmma reads what TMA still writes", 128, wgmma_before_the_copy},
      {copy_in_flight, "st.async: read before its mbarrier", 64, mail, 2},
      {copy_in_flight, "multicast: one CTA does not wait", 64, multicast_waited_for_here_alone, 2},
      {read_write_race, "another CTA reads: barrier.cluster.arrive is relaxed", 64,
       peer_read_without_release, 2},
      {operand_in_flight, "B of a wgmma in flight is written", 128, operand_overwritten_in_flight},
      {missing_proxy_fence, "wgmma: no fence.proxy.async", 128, wgmma_without_proxy_fence},
      {wgmma_order, "wgmma: no wgmma.fence", 128, wgmma_without_fence},
      {wgmma_order, "wgmma: the accumulator changes after wgmma.fence", 128,
       accumulator_written_after_the_fence},
      {wgmma_order, "wgmma: no commit_group", 128, wgmma_without_commit},
      {wgmma_order, "wgmma: no wait_group", 128, wgmma_never_waited_for},
      {register_in_flight, "wgmma: the accumulator is read before the wait", 128,
       accumulator_read_in_flight},
      {register_in_flight, "wgmma: the accumulator is changed before the wait", 128,
       accumulator_changed_in_flight},
      {register_in_flight, "wgmma: A's registers are changed before the wait", 128,
       a_changed_in_flight},
      {partial_warp, "wgmma by three warps of four", 128, three_warps_of_four},
      {partial_warp, "a wait_group in a branch that one warp of four takes", 128,
       one_warp_waits_first},
      {mbarrier_misuse, "mbarrier: another CTA uses it, no fence.mbarrier_init", 64,
       remote_mbarrier_without_init_fence, 2},
      {barrier_count, "barrier.cluster: two arrivals, no wait between", 64, cluster_arrives_twice,
       2},
      {peer_gone, "another CTA's memory before it is known to run", 64, peer_before_it_starts, 2},
      {peer_gone, "another CTA's memory when it may have ended", 64, peer_may_have_ended, 2},
      {out_of_bounds, "a matrix descriptor beyond shared memory", 128, descriptor_out_of_bounds},
      {out_of_bounds, "CTA 2 of a cluster of two", 64, cta_beyond_the_cluster, 2},
      {register_budget, "setmaxnreg.inc to fewer registers", 128, more_by_less, 1, false, 64},
      {register_budget, "setmaxnreg.inc to more than the CTA has", 256, more_than_there_are, 1,
       false, 64},
      {unknown_instruction, "wgmma on sm_89", 128, wgmma_never_waited_for, 1, false, 0, 89},
  };
}

}  // namespace octavo::emulator
