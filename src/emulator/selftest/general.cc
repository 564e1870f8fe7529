// SPDX-License-Identifier: Apache-2.0
// Selftest kernels that do not need Hopper. In each, `right` adds the one thing that the faulty
// form lacks.
#include "device/ptx/warpgroup.cuh"
#include "emulator/selftest/kernels.h"

namespace octavo::emulator {
namespace {

using namespace selftest;

u32 word(u32 i) { return ptx::shared_base() + i * 4; }
u32 other_warp() { return (me() + 32) % 64; }

void read_of_nothing(const Memory&, bool right) {
  if (right) ptx::store_shared_b32(word(me()), 1);
  ptx::load_shared_f32(word(me()));
}

void read_of_other_warp(const Memory&, bool right) {
  ptx::store_shared_b32(word(me()), 1);
  if (right) ptx::cta_sync();
  ptx::load_shared_f32(word(other_warp()));
}

void read_of_other_lane(const Memory&, bool right) {
  ptx::store_shared_b32(word(me()), 1);
  if (right) ptx::warp_sync();
  ptx::load_shared_f32(word(me() ^ 1));
}

void overwritten_under_a_reader(const Memory&, bool right) {
  ptx::store_shared_b32(word(me()), 1);
  ptx::cta_sync();
  ptx::load_shared_f32(word(other_warp()));
  if (right) ptx::cta_sync();
  ptx::store_shared_b32(word(me()), 2);
}

void part_of_a_word(const Memory&, bool right) {
  if (me() == 0) ptx::store_shared_b32(word(0), 1);
  if (right) ptx::cta_sync();
  if (me() == 32) ptx::store_shared_b8(word(0) + 3, 2);
}

void two_writers(const Memory&, bool right) {
  if (me() == 0) ptx::store_shared_b32(word(0), 1);
  if (right) ptx::cta_sync();
  if (me() == 32) ptx::store_shared_b32(word(0), 2);
}

void copy_without_wait(const Memory& m, bool right) {
  ptx::cp_async_16(word(me() * 4), m.in + me() * 4, true);
  ptx::cp_async_commit();
  if (right) ptx::cp_async_wait<0>();
  ptx::load_shared_f32(word(me() * 4));
}

void copy_without_commit(const Memory& m, bool right) {
  ptx::cp_async_16(word(me() * 4), m.in + me() * 4, true);
  if (right) ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  ptx::load_shared_f32(word(me() * 4));
}

void copy_of_the_newest_group(const Memory& m, bool right) {
  for (u32 i = 0; i < 2; ++i) {
    ptx::cp_async_16(word(me() * 4 + i * 256), m.in + me() * 4, true);
    ptx::cp_async_commit();
  }
  if (right)
    ptx::cp_async_wait<0>();
  else
    ptx::cp_async_wait<1>();
  ptx::load_shared_f32(word(me() * 4 + 256));
}

void copy_of_another_thread(const Memory& m, bool right) {
  ptx::cp_async_16(word(me() * 4), m.in + me() * 4, true);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  if (right) ptx::cta_sync();
  ptx::load_shared_f32(word(other_warp() * 4));
}

void store_under_a_copy(const Memory& m, bool right) {
  ptx::cp_async_16(word(me() * 4), m.in + me() * 4, true);
  ptx::cp_async_commit();
  if (right) ptx::cp_async_wait<0>();
  ptx::store_shared_b32(word(me() * 4), 1);
  ptx::cp_async_wait<0>();
}

void copy_over_readers(const Memory& m, bool right) {
  ptx::store_shared_b32(word(me()), 1);
  ptx::cta_sync();
  ptx::load_shared_f32(word(other_warp()));
  if (right) ptx::cta_sync();
  if (me() < 16) ptx::cp_async_16(word(me() * 4), m.in, true);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
}

void counts_that_differ(const Memory&, bool right) {
  ptx::named_barrier_sync(1, me() < 32 || right ? 64 : 32);
}

void count_of_half_a_warp(const Memory&, bool right) {
  ptx::named_barrier_sync(1, right ? 64 : 48);
}

void barrier_seventeen(const Memory&, bool right) { ptx::named_barrier_sync(right ? 15 : 16, 64); }

void shuffle_in_a_branch(const Memory&, bool right) {
  if (right || me() % 32 < 16) ptx::shuffle_xor(1.0f, 1);
}

void two_shuffles_at_once(const Memory&, bool right) {
  if (right || me() % 32 < 16)
    ptx::shuffle_xor(1.0f, 1);
  else
    ptx::shuffle_xor(1.0f, 2);
}

void barrier_in_a_branch(const Memory&, bool right) {
  if (right || me() % 32 < 31) ptx::cta_sync();
}

void no_grid_wait(const Memory& m, bool right) {
  if (right) ptx::wait_for_earlier_grids();
  ptx::load_coherent_i32(reinterpret_cast<const i32*>(m.in) + me());
}

void grid_wait_after_a_store(const Memory& m, bool right) {
  if (right) ptx::wait_for_earlier_grids();
  ptx::store_global_b32(m.out + me(), 1);
  ptx::wait_for_earlier_grids();
}

void shared_misaligned(const Memory&, bool right) {
  for (u32 i = 0; i < 8; ++i) ptx::store_shared_b32(word(me() * 8 + i), 1);
  u32 x[4];
  ptx::load_shared_b128(word(me() * 8 + (right ? 4 : 1)), x);
}

void global_misaligned(const Memory& m, bool right) {
  ptx::store_global_b64(m.out + me() * 4 + (right ? 0 : 1), 1, 2);
}

void beyond_shared(const Memory&, bool right) {
  ptx::store_shared_b32(word(kSelftestSmemBytes / 4 - (right ? 64 : 63) + me()), 1);
}

void before_shared(const Memory&, bool right) {
  // An offset used as an address.
  ptx::store_shared_b32((right ? ptx::shared_base() : 0) + me() * 4, 1);
}

void beyond_global(const Memory& m, bool right) {
  ptx::load_global_f32(reinterpret_cast<const float*>(m.in) + kSelftestWords - (right ? 64 : 63) +
                       me());
}

void copy_beyond_global(const Memory& m, bool right) {
  // A row that does not exist is not read, whatever its address.
  ptx::cp_async_16(word(me() * 4), m.in + kSelftestWords, !right);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
}

void input_written(const Memory& m, bool right) {
  ptx::store_global_b32(right ? m.out + me() : const_cast<u32*>(m.in) + me(), 1);
}

void warp_that_does_not_come(const Memory&, bool right) {
  if (right || me() < 32) ptx::cta_sync();
}

void nobody_arrives(const Memory&, bool right) {
  if (me() < 32)
    ptx::named_barrier_sync(1, 64);
  else if (right)
    ptx::named_barrier_arrive(1, 64);
}

void crossed_barriers(const Memory&, bool right) {
  const int first = right || me() < 32 ? 1 : 2;
  ptx::named_barrier_sync(first, 64);
  ptx::named_barrier_sync(3 - first, 64);
}

}  // namespace

std::vector<SelftestCase> general_selftest_cases() {
  using enum Hazard;
  return {
      {uninitialised_read, "shared memory is read that nothing wrote", 64, read_of_nothing},
      {read_write_race, "another warp reads: no barrier", 64, read_of_other_warp},
      {read_write_race, "another lane reads: no bar.warp.sync", 64, read_of_other_lane},
      {read_write_race, "a buffer is refilled while a warp reads it: no barrier", 64,
       overwritten_under_a_reader},
      {write_write_race, "two warps write a word: no barrier", 64, two_writers},
      {write_write_race, "one byte of a word: no barrier", 64, part_of_a_word},
      {copy_in_flight, "cp.async: no wait_group", 64, copy_without_wait},
      {copy_in_flight, "cp.async: no commit_group before the wait", 64, copy_without_commit},
      {copy_in_flight, "cp.async: wait_group 1 where the newest group is read", 64,
       copy_of_the_newest_group},
      {copy_in_flight, "cp.async of another thread: waited for, no barrier", 64,
       copy_of_another_thread},
      {copy_in_flight, "a store to bytes that cp.async still writes", 64, store_under_a_copy},
      {read_write_race, "cp.async over bytes that a warp still reads", 64, copy_over_readers},
      {barrier_count, "bar.sync: two counts for one barrier", 64, counts_that_differ},
      {barrier_count, "bar.sync: a count of half a warp", 64, count_of_half_a_warp},
      {barrier_count, "bar.sync: barrier 16", 64, barrier_seventeen},
      {partial_warp, "shfl.sync in a branch that half of the warp takes", 64, shuffle_in_a_branch},
      {partial_warp, "lanes of one warp in two shfl.sync", 64, two_shuffles_at_once},
      {partial_warp, "bar.sync without one lane", 64, barrier_in_a_branch},
      {missing_grid_wait, "global memory is read: no griddepcontrol.wait", 64, no_grid_wait, 1,
       true},
      {missing_grid_wait, "global memory is written: griddepcontrol.wait comes after", 64,
       grid_wait_after_a_store, 1, true},
      {misaligned, "ld.shared.v4 at a multiple of 4 bytes", 64, shared_misaligned},
      {misaligned, "st.global.v2 at a multiple of 4 bytes", 64, global_misaligned},
      {out_of_bounds, "a store behind the end of shared memory", 64, beyond_shared},
      {out_of_bounds, "an offset in place of a shared address", 64, before_shared},
      {out_of_bounds, "a load behind the end of a tensor", 64, beyond_global},
      {out_of_bounds, "cp.async of a row that does not exist", 64, copy_beyond_global},
      {out_of_bounds, "an input is written", 64, input_written},
      {deadlock, "a warp that does not come to bar.sync", 64, warp_that_does_not_come},
      {deadlock, "bar.sync: no bar.arrive by the other warp", 64, nobody_arrives},
      {deadlock, "two warps take two barriers in opposite order", 64, crossed_barriers},
  };
}

}  // namespace octavo::emulator
