// SPDX-License-Identifier: Apache-2.0
// Adds up the partial results of work tiles that the decode kernel has computed in several parts.
//
// With batch_invariant one CTA combines one row of a work tile. Its warps divide the parts among
// themselves and add up their sums through shared memory.
//
// Otherwise a work tile is cut where one CTA's KV tiles end and the next one's begin. There are
// ctas - 1 such boundaries, and at most one work tile is cut at each. CTA i of this grid takes the
// boundary between CTAs i and i + 1. It combines the work tile that is cut there, provided that
// this work tile begins in CTA i; otherwise it returns. It adds the parts in the order of the CTAs.
//
// If a work tile has few parts, each warp adds up rows of its own (warps_per_row = 1). If it has
// many, all warps of a CTA divide the parts of one row as above, and each boundary has as many CTAs
// as a work tile has rows.
//
//   shared memory   what                                          floats
//   o               a row of O of every warp                      kCombineWarps * head_dim
//   scalars         reference maximum and sum of every warp       2 * kCombineWarps
#pragma once

#include "config/decode.h"
#include "device/decode/geometry.cuh"
#include "device/decode/output.cuh"
#include "device/decode/parts.cuh"
#include "device/decode/schedule.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/warpgroup.cuh"

namespace octavo::decode {

OCTAVO_HD constexpr int combine_smem_bytes(const DecodeConfig& c) {
  return kCombineWarps * (c.head_dim + 2) * 4;
}

template <class Config>
struct CombineKernel {
  using G = Geometry<Config>;
  static constexpr DecodeConfig C = G::C;
  static constexpr int kPairs = div_up(C.head_dim, 64);  // pairs of columns of a lane

  using Tiles = Schedule<tile_keys(C), /*kOverlaps=*/true>;

  // The partial results of a work tile: the numbers of the first and of the second. The others
  // follow, one from each CTA, or with batch_invariant all in a row.
  struct Parts {
    i32 first, second, count;
    OCTAVO_DEVICE Partial<G> part(const Params& p, i32 i) const {
      constexpr i32 kStep = C.batch_invariant ? 1 : 2;
      return {p, i == 0 ? first : second + (i - 1) * kStep};
    }
  };

  // A row's sum over some of its parts, relative to 2^ref_max.
  struct RowSum {
    float o[kPairs][2] = {};
    float ref_max = kLowest, sum = 0;

    OCTAVO_DEVICE void rescale(float to) {
      const float factor = ptx::exp2_approx(ref_max - to);
      ref_max = to;
      sum *= factor;
      OCTAVO_UNROLL
      for (int pair = 0; pair < kPairs; ++pair) {
        o[pair][0] *= factor;
        o[pair][1] *= factor;
      }
    }
    OCTAVO_DEVICE void add(const RowSum& other) {
      const float factor = ptx::exp2_approx(other.ref_max - ref_max);
      sum = ptx::fused_multiply_add(other.sum, factor, sum);
      OCTAVO_UNROLL
      for (int pair = 0; pair < kPairs; ++pair) {
        OCTAVO_UNROLL
        for (int e = 0; e < 2; ++e)
          o[pair][e] = ptx::fused_multiply_add(other.o[pair][e], factor, o[pair][e]);
      }
    }
  };

  static OCTAVO_DEVICE u32 column_of(int pair, u32 lane) {
    return static_cast<u32>(pair) * 64 + lane * 2;
  }
  static OCTAVO_DEVICE bool column_exists(int pair, u32 lane) {
    return C.head_dim % 64 == 0 || column_of(pair, lane) < C.head_dim;
  }

  // The lane's columns of part `i`. A part that does not exist adds nothing.
  static OCTAVO_DEVICE RowSum load_part(const Params& p, const Parts& parts, i32 i, i32 row,
                                        u32 lane) {
    RowSum part;
    if (i >= parts.count) return part;
    const Partial<G> from = parts.part(p, i);
    part.ref_max = ptx::load_written_f32(from.ref_max(row));
    part.sum = ptx::load_written_f32(from.sum(row));
    OCTAVO_UNROLL
    for (int pair = 0; pair < kPairs; ++pair) {
      if (!column_exists(pair, lane)) continue;
      u32 x[2];
      ptx::load_coherent_b64(from.o(row, column_of(pair, lane)), x[0], x[1]);
      part.o[pair][0] = ptx::float_of_bits(x[0]);
      part.o[pair][1] = ptx::float_of_bits(x[1]);
    }
    return part;
  }

  // Adds up every `stride`-th part of a row, beginning with part `begin`. Loads of kAtOnce parts
  // are in flight together.
  static OCTAVO_DEVICE RowSum add_parts(const Params& p, const Parts& parts, i32 row, i32 begin,
                                        i32 stride, u32 lane) {
    constexpr int kAtOnce = C.head_dim <= 128 ? 6 : 3;
    RowSum total;
    OCTAVO_ROLLED
    for (i32 i = begin; i < parts.count; i += kAtOnce * stride) {
      RowSum part[kAtOnce];
      OCTAVO_UNROLL
      for (int k = 0; k < kAtOnce; ++k) part[k] = load_part(p, parts, i + k * stride, row, lane);
      float largest = total.ref_max;
      OCTAVO_UNROLL
      for (int k = 0; k < kAtOnce; ++k) largest = ptx::max_f32(largest, part[k].ref_max);
      total.rescale(largest);
      OCTAVO_UNROLL
      for (int k = 0; k < kAtOnce; ++k) total.add(part[k]);
    }
    return total;
  }

  static OCTAVO_DEVICE void store(const Params& p, const WorkTile& work, const SequenceSpan& span,
                                  i32 row, const RowSum& total, u32 lane) {
    const bool padding = is_padding(span, work.token(p, row));
    const FinishedRow finished =
        finish_row(p, work.head(p, row), padding, total.ref_max, total.sum);
    if (lane == 0) store_lse(p, work, row, finished.lse);
    u8* const out = out_row<C.out>(p, work, row);
    OCTAVO_UNROLL
    for (int pair = 0; pair < kPairs; ++pair)
      if (static_cast<i32>(column_of(pair, lane)) < p.head_dim)
        store_pair<C.out>(out, column_of(pair, lane), finished.value(total.o[pair][0]),
                          finished.value(total.o[pair][1]));
  }

  // Warp 0 adds up the sums of all warps of the CTA.
  static OCTAVO_DEVICE void add_warps(RowSum& total, u32 warp, u32 lane) {
    const auto o = [](u32 of_warp, u32 column) {
      return ptx::shared_base() + (of_warp * C.head_dim + column) * 4;
    };
    const auto scalar = [&o](u32 of_warp, u32 which) {
      return o(kCombineWarps, of_warp * 2 + which);
    };
    OCTAVO_UNROLL
    for (int pair = 0; pair < kPairs; ++pair) {
      if (!column_exists(pair, lane)) continue;
      ptx::store_shared_f32(o(warp, column_of(pair, lane)), total.o[pair][0]);
      ptx::store_shared_f32(o(warp, column_of(pair, lane) + 1), total.o[pair][1]);
    }
    if (lane == 0) {
      ptx::store_shared_f32(scalar(warp, 0), total.ref_max);
      ptx::store_shared_f32(scalar(warp, 1), total.sum);
    }
    ptx::cta_sync();
    if (warp != 0) return;
    OCTAVO_UNROLL
    for (u32 other = 1; other < kCombineWarps; ++other) {
      RowSum theirs;
      theirs.ref_max = ptx::load_shared_f32(scalar(other, 0));
      theirs.sum = ptx::load_shared_f32(scalar(other, 1));
      OCTAVO_UNROLL
      for (int pair = 0; pair < kPairs; ++pair) {
        if (!column_exists(pair, lane)) continue;
        theirs.o[pair][0] = ptx::load_shared_f32(o(other, column_of(pair, lane)));
        theirs.o[pair][1] = ptx::load_shared_f32(o(other, column_of(pair, lane) + 1));
      }
      total.rescale(ptx::max_f32(total.ref_max, theirs.ref_max));
      total.add(theirs);
    }
  }

  // Combines one row, with all warps of the CTA.
  static OCTAVO_DEVICE void combine_row(const Params& p, const Parts& parts, const WorkTile& work,
                                        const SequenceSpan& span, i32 row) {
    if (row >= work.rows) return;
    const u32 warp = ptx::warp_index(), lane = ptx::lane_index();
    RowSum total = add_parts(p, parts, row, static_cast<i32>(warp), kCombineWarps, lane);
    add_warps(total, warp, lane);
    if (warp == 0) store(p, work, span, row, total, lane);
  }
  // Combines all rows, each with one warp.
  static OCTAVO_DEVICE void combine_rows(const Params& p, const Parts& parts, const WorkTile& work,
                                         const SequenceSpan& span) {
    const u32 lane = ptx::lane_index();
    OCTAVO_ROLLED
    for (i32 row = static_cast<i32>(ptx::warp_index()); row < work.rows; row += kCombineWarps)
      store(p, work, span, row, add_parts(p, parts, row, 0, 1, lane), lane);
  }

  // Combines one row of one work tile, with batch_invariant.
  static OCTAVO_DEVICE void run_fixed(const Params& p) {
    if constexpr (C.arch >= 90) ptx::wait_for_earlier_grids();
    const i32 row = ptx::block_index_x() % p.combine_rows;
    const i32 number = ptx::block_index_x() / p.combine_rows;
    Cursor at;
    at.row_tile = number % p.row_tiles;
    at.kv_head = number / p.row_tiles % p.heads_kv;
    at.sequence = number / p.row_tiles / p.heads_kv;
    at.keys = sequence_keys<tile_keys(C), /*kOverlaps=*/true>(p, at.sequence);
    const i32 count = div_up(at.keys.kv_tiles, part_tiles(at.keys.kv_tiles));
    if (count == 1) return;  // the decode kernel has stored it
    const i32 first = FixedParts<Tiles>::first_partial(p, at);
    combine_row(p, {first, first + 1, count}, work_tile_of<C.block_m>(p, at), at.keys.span, row);
  }

  // Combines the work tile that is cut between two CTAs.
  static OCTAVO_DEVICE void run_even(const Params& p) {
    // Every CTA waits for the decode kernel, so that this grid does not end before that one.
    // Lengths are read after the wait.
    const bool reads_lengths = has_lengths(p);
    if (C.arch >= 90 && reads_lengths) ptx::wait_for_earlier_grids();
    const Tiles tiles(p);
    const i32 rows_of_grid = p.warps_per_row > 1 ? p.combine_rows : 1;
    const i32 boundary = ptx::block_index_x() / rows_of_grid;
    const i32 first = tiles.first_tile(boundary), next = tiles.first_tile(boundary + 1);
    const Cursor cut = tiles.find(min_of(next, tiles.total - 1));
    if (C.arch >= 90 && !reads_lengths) ptx::wait_for_earlier_grids();
    const i32 begin = next - cut.kv_tile, end = begin + cut.keys.kv_tiles;
    // No work tile is cut here, or it began before CTA `boundary`.
    if (first == next || next == tiles.total || cut.kv_tile == 0 || begin < first) return;
    const Parts parts{boundary * 2 + (begin == first ? 0 : 1), (boundary + 1) * 2,
                      tiles.cta_of(end - 1) - boundary + 1};
    const WorkTile work = work_tile_of<C.block_m>(p, cut);
    if (p.warps_per_row > 1)
      combine_row(p, parts, work, cut.keys.span, ptx::block_index_x() % rows_of_grid);
    else
      combine_rows(p, parts, work, cut.keys.span);
  }

  static OCTAVO_DEVICE void entry(const Params& p) {
    if constexpr (C.batch_invariant)
      run_fixed(p);
    else
      run_even(p);
  }
};

template <class Config>
OCTAVO_KERNEL(32 * kCombineWarps, 1)
decode_combine(const OCTAVO_GRID_CONSTANT Params p) {
  CombineKernel<Config>::entry(p);
}

}  // namespace octavo::decode
