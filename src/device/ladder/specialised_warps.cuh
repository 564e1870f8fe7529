// SPDX-License-Identifier: Apache-2.0
// Rung 5, specialised warps on Hopper: one warp moves data, two warpgroups compute.
//
// The new idea is the division of labour. In rung 4 every warp spends instructions and registers on
// copies, and its products stop while it computes a softmax. On Hopper one thread starts a copy of
// a whole tile (TMA), and one instruction of a warpgroup, four warps, multiplies 64 rows from
// shared memory (wgmma). So a producer warp does all the copies, ahead of time, and gives its
// registers to the consumers. Two consumer warpgroups have the same 64 rows and take turns with the
// blocks: one's softmax runs while the other's product does. They add up their results at the end,
// as the online softmax adds two blocks.
//
//   role         warps   registers   does
//   producer     0       24          TMA loads of Q, then of K and V, as stages become empty
//   consumer c   4 c..   240         blocks c, c + 2, ...: S = Q K^T, softmax, O += P V
//
//   shared memory        what                                     bytes at head_dim 64
//   q                    64 rows, panels of 64 columns            8192
//   k[stages] v[stages]  128 keys each, in panels                 16384 each
//   barriers             below                                    104
//
//   mbarrier   arrives                     waits       becomes true
//   q_full     producer, and Q's bytes     consumers   Q is loaded
//   k_full[s]  producer, and K's bytes     consumer    a block of K is loaded
//   v_full[s]  the same for V
//   empty[s]   4 warps of the consumer     producer    the stage may be overwritten
//
//   named barrier   arrives          waits             becomes true
//   1               consumer 1       consumer 0        the partial result of consumer 1 is written
//   2               consumer 1       consumer 1        its four warps are done with the last stage
#pragma once

#include "device/ladder/fragments.cuh"
#include "device/ptx/fence.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/ptx/wgmma_f16.cuh"
#include "device/tile/matrix_descriptor.cuh"

namespace octavo::ladder {

template <int kHeadDim>
struct SpecialisedWarps {
  static constexpr int kThreads = 384, kRows = 64, kKeys = 128;
  static constexpr u32 kStages = kHeadDim == 64 ? 4 : 3, kPanels = kHeadDim / 64;
  static constexpr u32 kQBytes = kRows * kHeadDim * 2, kKvBytes = kKeys * kHeadDim * 2;
  static constexpr u32 kBarriers = kQBytes + 2 * kStages * kKvBytes;
  static constexpr u32 kSmemBytes = kBarriers + (1 + 3 * kStages) * 8;
  using O = Accumulator<kHeadDim>;

  static OCTAVO_DEVICE u32 k_tile(u32 stage) {
    return ptx::shared_base() + kQBytes + stage * 2 * kKvBytes;
  }
  static OCTAVO_DEVICE u32 v_tile(u32 stage) { return k_tile(stage) + kKvBytes; }
  static OCTAVO_DEVICE u32 barrier(u32 i) { return ptx::shared_base() + kBarriers + i * 8; }
  static OCTAVO_DEVICE u32 q_full() { return barrier(0); }
  static OCTAVO_DEVICE u32 k_full(u32 stage) { return barrier(1 + stage); }
  static OCTAVO_DEVICE u32 v_full(u32 stage) { return barrier(1 + kStages + stage); }
  static OCTAVO_DEVICE u32 empty(u32 stage) { return barrier(1 + 2 * kStages + stage); }

  // --- the producer: one thread -----------------------------------------------------------------

  // TMA fills rows that do not exist with zeros, and swizzles as the descriptors below expect.
  static OCTAVO_DEVICE void load(const ptx::TensorMap& map, u32 to, u32 full, u32 rows, i32 row,
                                 i32 head) {
    ptx::mbarrier_arrive_expect_tx(full, rows * kHeadDim * 2);
    OCTAVO_UNROLL
    for (u32 panel = 0; panel < kPanels; ++panel)
      ptx::tma_load(to + panel * rows * 128, &map, full,
                    {static_cast<i32>(panel * 64), row, head, 0});
  }
  static OCTAVO_DEVICE void produce(const Params& p, const RowTile<kRows>& tile, u32 blocks) {
    load(p.q_map, ptx::shared_base(), q_full(), kRows, tile.first_row, tile.head);
    OCTAVO_ROLLED
    for (u32 n = 0; n < blocks; ++n) {
      const u32 stage = n % kStages;
      if (n >= kStages) ptx::mbarrier_wait(empty(stage), (n / kStages - 1) % 2);
      load(p.k_map, k_tile(stage), k_full(stage), kKeys, static_cast<i32>(n) * kKeys, tile.head);
      load(p.v_map, v_tile(stage), v_full(stage), kKeys, static_cast<i32>(n) * kKeys, tile.head);
    }
  }

  // --- a consumer warpgroup ---------------------------------------------------------------------

  // S = Q K^T, 16 columns of Q and K at a time: 32 bytes of a row in a panel.
  static OCTAVO_DEVICE void multiply_qk(Accumulator<kKeys>& s, u32 stage) {
    ptx::pin(s.x);
    ptx::wgmma_fence();
    OCTAVO_UNROLL
    for (u32 step = 0; step < kHeadDim / 16; ++step) {
      const u32 panel = step / 4, bytes = step % 4 * 32;
      ptx::wgmma_f16<false, false>(s.x, k_major(ptx::shared_base() + panel * kRows * 128 + bytes),
                                   k_major(k_tile(stage) + panel * kKeys * 128 + bytes), step > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(s.x);
  }
  // O += P V, 16 keys at a time, with P from registers.
  static OCTAVO_DEVICE void multiply_pv(O& o, const Accumulator<kKeys>& s, u32 stage) {
    u32 a[kKeys / 16][4];
    OCTAVO_UNROLL
    for (int step = 0; step < kKeys / 16; ++step) {
      pack_p(a[step], s, step);
      ptx::pin(a[step]);
    }
    ptx::pin(o.x);
    ptx::wgmma_fence();
    OCTAVO_UNROLL
    for (int step = 0; step < kKeys / 16; ++step)
      ptx::wgmma_f16<true>(o.x, a[step], mn_major(v_tile(stage) + step * 16 * 128, kKeys * 128),
                           true);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(o.x);
  }

  // Consumer 1 leaves its O and its row state in its last stage, which no copy will overwrite:
  // calls f(address, x) for each of these registers.
  template <class F>
  static OCTAVO_DEVICE void for_each_partial(O& o, RowState& rows, u32 blocks, F&& f) {
    const u32 last = (blocks - 2) / 2 * 2 + 1;  // the last odd block
    const u32 to = k_tile(last % kStages) + ptx::thread_index() % 128 * 4;
    OCTAVO_UNROLL
    for (u32 i = 0; i < O::kSize; ++i) f(to + i * 512, o.x[i]);
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      f(to + (O::kSize + r) * 512, rows.max[r]);
      f(to + (O::kSize + 2 + r) * 512, rows.sum[r]);
    }
  }
  static OCTAVO_DEVICE void consume(const Params& p, const RowTile<kRows>& tile, u32 blocks,
                                    u32 c) {
    const i32 warp_row = tile.first_row + static_cast<i32>(ptx::warp_index() % 4) * 16;
    const i32 row = warp_row + static_cast<i32>(ptx::lane_index() / 4);
    O o;
    RowState rows;
    ptx::mbarrier_wait(q_full(), 0);
    OCTAVO_ROLLED
    for (u32 n = c; n < blocks; n += 2) {
      const u32 stage = n % kStages, parity = n / kStages % 2;
      const i32 key = static_cast<i32>(n) * kKeys;
      Accumulator<kKeys> s;
      ptx::mbarrier_wait(k_full(stage), parity);
      multiply_qk(s, stage);
      if (key + kKeys > visible_keys(p, warp_row)) hide_keys(s, p, row, key);
      online_softmax(s, o, rows, p.scale_log2);
      ptx::mbarrier_wait(v_full(stage), parity);
      multiply_pv(o, s, stage);
      if (ptx::lane_index() == 0) ptx::mbarrier_arrive(empty(stage));
    }
    if (blocks >= 2 && c == 1) {
      ptx::named_barrier_sync(2, 128);
      for_each_partial(o, rows, blocks, [](u32 at, float& x) { ptx::store_shared_f32(at, x); });
      ptx::named_barrier_arrive(1, 256);
    } else if (blocks >= 2) {
      O o1;
      RowState rows1;
      ptx::named_barrier_sync(1, 256);
      for_each_partial(o1, rows1, blocks, [](u32 at, float& x) { x = ptx::load_shared_f32(at); });
      add_partial(o, rows, o1, rows1, p.scale_log2);
    }
    if (c == 0) store_o(o, rows, p, tile.head, row);
  }

  // --- all --------------------------------------------------------------------------------------

  static OCTAVO_DEVICE void run(const Params& p) {
    if (ptx::thread_index() == 0) {
      for (u32 i = 0; i < 1 + 2 * kStages; ++i) ptx::mbarrier_init(barrier(i), 1);
      for (u32 stage = 0; stage < kStages; ++stage) ptx::mbarrier_init(empty(stage), 4);
      ptx::fence_mbarrier_init();
    }
    ptx::cta_sync();
    const RowTile<kRows> tile(p);
    const u32 blocks = static_cast<u32>(div_up(tile.keys(p), kKeys));
    const u32 warpgroup = ptx::warp_index() / 4;
    if (warpgroup == 0) {
      ptx::decrease_registers<24>();
      if (ptx::thread_index() == 0) produce(p, tile, blocks);
    } else {
      ptx::increase_registers<240>();
      consume(p, tile, blocks, warpgroup - 1);
    }
  }
};

template <int kHeadDim>
OCTAVO_KERNEL(SpecialisedWarps<kHeadDim>::kThreads, 1)
specialised_warps(const OCTAVO_GRID_CONSTANT Params p) {
  SpecialisedWarps<kHeadDim>::run(p);
}

}  // namespace octavo::ladder
