// SPDX-License-Identifier: Apache-2.0
// Adds up the parts of a work tile whose CTAs form a cluster, in the same launch.
//
// The CTAs of a cluster divide the keys of one work tile (cluster_range), and each also owns an
// equal share of its O, counted in pairs of columns. At the end every CTA sends each owner its part
// of that share, and the reference maximum and sum of every row, into shared memory of the owner.
// An owner waits for the bytes of all parts, adds them up in the order of the CTAs, and stores the
// result.
//
//   shared memory   what                                               bytes
//   pairs           the owned pairs, part after part                   gather_pair_bytes
//   rows            reference maximum and sum, for each part and row   kMostCtas * block_m * 8
//   full            mbarrier: one arrival, and the bytes of all parts  8
#pragma once

#include "config/decode.h"
#include "device/decode/geometry.cuh"
#include "device/decode/output.cuh"
#include "device/ptx/cluster.cuh"
#include "device/ptx/fence.cuh"
#include "device/ptx/mbarrier.cuh"

namespace octavo::decode {

template <class G>
struct Cluster {
  static constexpr DecodeConfig C = G::C;
  static constexpr i32 kPairs = C.head_dim / 2;  // of a row
  static_assert(kPairs % kMostCtas == 0, "all CTAs of a cluster own equally many pairs");

  i32 log2_ctas;
  i32 rank;
  i32 kv_tiles, rows;  // of the work tile
  i32 parts;           // CTAs that have a KV tile
  i32 share;           // pairs of columns that a CTA owns

  OCTAVO_DEVICE Cluster(const Params& p, i32 rows_of_tile, i32 kv_tiles_of_tile)
      : log2_ctas(p.log2_cluster),
        rank(static_cast<i32>(ptx::cluster_cta_rank())),
        kv_tiles(kv_tiles_of_tile),
        rows(rows_of_tile),
        parts(min_of(kv_tiles, ctas())),
        share(rows * kPairs >> log2_ctas) {}

  OCTAVO_DEVICE i32 ctas() const { return 1 << log2_ctas; }
  // The first KV tile of the CTA with this rank. The numbers of KV tiles differ by at most one.
  OCTAVO_DEVICE i32 first_tile(i32 of_rank) const {
    return static_cast<i32>(static_cast<i64>(kv_tiles) * of_rank >> log2_ctas);
  }

  // Makes the barrier ready. Every CTA of the cluster calls it before any of them sends.
  OCTAVO_DEVICE void prepare() const {
    if (ptx::thread_index() == 0) {
      ptx::mbarrier_init(full(), 1);
      ptx::fence_mbarrier_init();
      ptx::mbarrier_arrive_expect_tx(full(), static_cast<u32>(parts * (share + rows) * 8));
    }
    ptx::cluster_arrive_relaxed();
  }

  // Sends two neighbouring columns of a row to their owner, after cluster_wait().
  OCTAVO_DEVICE void send_pair(i32 row, u32 column, float low, float high) const {
    const i32 number = row * kPairs + static_cast<i32>(column / 2);
    const i32 owner = number / share;
    send(pair(part(), number - owner * share), owner, low, high);
  }
  // Sends the reference maximum and the sum of a row to one CTA.
  OCTAVO_DEVICE void send_row(i32 row, i32 to, float ref_max, float sum) const {
    send(row_of(part(), row), to, ref_max, sum);
  }

  // Waits for all parts of the owned pairs, adds them up and stores the result. Nothing else runs
  // meanwhile, so addresses are computed before the wait, and all loads are in flight at once.
  OCTAVO_DEVICE void finish(const Params& p, const WorkTile& work, const SequenceSpan& span) const {
    OCTAVO_ROLLED
    for (i32 i = static_cast<i32>(ptx::thread_index()); i < share; i += threads(C)) {
      const i32 number = rank * share + i;
      const OutPair<C.out> out(p, work, span, number / kPairs,
                               static_cast<u32>(number % kPairs * 2));
      ptx::mbarrier_wait_cluster(full(), 0);
      float ref_max[kMostCtas], of_row[kMostCtas], low[kMostCtas], high[kMostCtas];
      float largest = kLowest;
      OCTAVO_UNROLL
      for (int k = 0; k < kMostCtas; ++k) {
        const i32 part = min_of(k, parts - 1);
        load(row_of(part, out.row), ref_max[k], of_row[k]);
        load(pair(part, i), low[k], high[k]);
        largest = ptx::max_f32(largest, ref_max[k]);
      }
      float sum = 0, o[2] = {};
      OCTAVO_UNROLL
      for (int k = 0; k < kMostCtas; ++k) {
        const float factor = k < parts ? ptx::exp2_approx(ref_max[k] - largest) : 0.0f;
        sum = ptx::fused_multiply_add(of_row[k], factor, sum);
        o[0] = ptx::fused_multiply_add(low[k], factor, o[0]);
        o[1] = ptx::fused_multiply_add(high[k], factor, o[1]);
      }
      out.store(p, largest, sum, o[0], o[1]);
    }
  }

 private:
  // The number of this CTA's part. If there are fewer KV tiles than CTAs, each part is one KV tile.
  OCTAVO_DEVICE i32 part() const { return parts < ctas() ? first_tile(rank) : rank; }
  static OCTAVO_DEVICE u32 pairs() {
    return G::stage_base(C.stages) + exchange_rows_bytes(C) + q_bytes(C);
  }
  static OCTAVO_DEVICE u32 row_of(i32 part, i32 row) {
    return pairs() + gather_pair_bytes(C) + static_cast<u32>(part * C.block_m + row) * 8;
  }
  static OCTAVO_DEVICE u32 full() { return row_of(kMostCtas, 0); }
  OCTAVO_DEVICE u32 pair(i32 part, i32 i) const {
    return pairs() + static_cast<u32>(part * share + i) * 8;
  }
  static OCTAVO_DEVICE void load(u32 place, float& x, float& y) {
    u32 words[2];
    ptx::load_shared_b64(place, words[0], words[1]);
    x = ptx::float_of_bits(words[0]);
    y = ptx::float_of_bits(words[1]);
  }
  static OCTAVO_DEVICE void send(u32 place, i32 to, float x, float y) {
    const u32 words[2] = {ptx::bits_of(x), ptx::bits_of(y)};
    const u32 cta = static_cast<u32>(to);
    ptx::st_async_b64(ptx::map_to_cta(place, cta), words, ptx::map_to_cta(full(), cta));
  }
};

}  // namespace octavo::decode
