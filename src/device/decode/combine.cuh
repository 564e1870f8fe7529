// SPDX-License-Identifier: Apache-2.0
// Adds up the partial results of work tiles that the decode kernel has computed in several parts.
//
// With batch_invariant one CTA combines one row of a work tile. Its warps divide the parts among
// themselves and add up their sums through shared memory.
//
// Otherwise the parts of a work tile are those of consecutive CTAs, and are added in their order.
// If there are few work tiles, each has many parts: again one CTA combines one row of a work tile
// (combine_by_row). Otherwise a work tile is cut where one CTA's KV tiles end and the next one's
// begin. There are ctas - 1 such boundaries, and at most one work tile is cut at each. CTA i of
// this grid combines the work tile that is cut between CTAs i and i + 1, provided that it begins in
// CTA i. Each warp adds up rows of its own.
//
//   shared memory   what                                          floats
//   o               a row of O of every warp                      kMostCombineWarps * head_dim
//   scalars         reference maximum and sum of every warp       2 * kMostCombineWarps
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
  return kMostCombineWarps * (c.head_dim + 2) * 4;
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
    i32 first = 0, second = 0, count = 0;
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
    constexpr int kAtOnce = C.head_dim <= 128 ? 9 : 4;
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

  // The addresses of a column of O and of the reference maximum (0) or the sum (1) of a warp.
  static OCTAVO_DEVICE u32 shared_o(u32 warp, u32 column) {
    return ptx::shared_base() + (warp * C.head_dim + column) * 4;
  }
  static OCTAVO_DEVICE u32 shared_scalar(u32 warp, u32 which) {
    return shared_o(kMostCombineWarps, warp * 2 + which);
  }
  static OCTAVO_DEVICE void share(const RowSum& total, u32 warp, u32 lane) {
    OCTAVO_UNROLL
    for (int pair = 0; pair < kPairs; ++pair) {
      if (!column_exists(pair, lane)) continue;
      ptx::store_shared_f32(shared_o(warp, column_of(pair, lane)), total.o[pair][0]);
      ptx::store_shared_f32(shared_o(warp, column_of(pair, lane) + 1), total.o[pair][1]);
    }
    if (lane == 0) {
      ptx::store_shared_f32(shared_scalar(warp, 0), total.ref_max);
      ptx::store_shared_f32(shared_scalar(warp, 1), total.sum);
    }
  }
  // Adds up the sums of `warps` warps for two columns, and stores the result.
  static OCTAVO_DEVICE void add_warps(const Params& p, const WorkTile& work,
                                      const SequenceSpan& span, i32 row, u32 column, u32 warps) {
    float ref_max = kLowest, sum = 0, low = 0, high = 0;
    OCTAVO_UNROLL_BY(8)
    for (u32 warp = 0; warp < warps; ++warp)
      ref_max = ptx::max_f32(ref_max, ptx::load_shared_f32(shared_scalar(warp, 0)));
    OCTAVO_UNROLL_BY(8)
    for (u32 warp = 0; warp < warps; ++warp) {
      const float factor = ptx::exp2_approx(ptx::load_shared_f32(shared_scalar(warp, 0)) - ref_max);
      const float of_warp = ptx::load_shared_f32(shared_scalar(warp, 1));
      sum = ptx::fused_multiply_add(of_warp, factor, sum);
      low = ptx::fused_multiply_add(ptx::load_shared_f32(shared_o(warp, column)), factor, low);
      high =
          ptx::fused_multiply_add(ptx::load_shared_f32(shared_o(warp, column + 1)), factor, high);
    }
    OutPair<C.out>(p, work, span, row, column).store(p, ref_max, sum, low, high);
  }

  // Combines one row, with all warps of the CTA.
  static OCTAVO_DEVICE void combine_row(const Params& p, const Parts& parts, const WorkTile& work,
                                        const SequenceSpan& span, i32 row) {
    if (row >= work.rows) return;
    const u32 warp = ptx::warp_index(), lane = ptx::lane_index();
    share(add_parts(p, parts, row, static_cast<i32>(warp), p.combine_warps, lane), warp, lane);
    ptx::cta_sync();
    const u32 column = ptx::thread_index() * 2;
    const u32 warps = static_cast<u32>(min_of(parts.count, p.combine_warps));
    if (column < C.head_dim) add_warps(p, work, span, row, column, warps);
  }
  // Combines all rows, each with one warp.
  static OCTAVO_DEVICE void combine_rows(const Params& p, const Parts& parts, const WorkTile& work,
                                         const SequenceSpan& span) {
    const u32 lane = ptx::lane_index();
    OCTAVO_ROLLED
    for (i32 row = static_cast<i32>(ptx::warp_index()); row < work.rows; row += p.combine_warps) {
      const RowSum total = add_parts(p, parts, row, 0, 1, lane);
      OCTAVO_UNROLL
      for (int pair = 0; pair < kPairs; ++pair)
        if (column_exists(pair, lane))
          OutPair<C.out>(p, work, span, row, column_of(pair, lane))
              .store(p, total.ref_max, total.sum, total.o[pair][0], total.o[pair][1]);
    }
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

  // Combines a work tile that is cut, or one row of it.
  static OCTAVO_DEVICE void run_even(const Params& p) {
    // Every CTA waits for the decode kernel, so that this grid does not end before that one.
    // Lengths are read after the wait.
    const bool reads_lengths = has_lengths(p);
    if (C.arch >= 90 && reads_lengths) ptx::wait_for_earlier_grids();
    const Tiles tiles(p);
    const Cut cut = p.combine_by_row ? cut_of(tiles, ptx::block_index_x() / p.combine_rows)
                                     : cut_at(tiles, ptx::block_index_x());
    if (C.arch >= 90 && !reads_lengths) ptx::wait_for_earlier_grids();
    if (cut.parts.count < 2) return;
    const WorkTile work = work_tile_of<C.block_m>(p, cut.at);
    if (p.combine_by_row)
      combine_row(p, cut.parts, work, cut.at.keys.span, ptx::block_index_x() % p.combine_rows);
    else
      combine_rows(p, cut.parts, work, cut.at.keys.span);
  }

  // A work tile and its parts, if there are several; else parts.count is at most 1.
  struct Cut {
    Cursor at;
    Parts parts;
  };
  // The parts of the work tile that begins at KV tile `begin` and in CTA `cta`.
  static OCTAVO_DEVICE Parts parts_from(const Tiles& tiles, i32 begin, i32 kv_tiles, i32 cta) {
    return {cta * 2 + (begin == tiles.first_tile(cta) ? 0 : 1), (cta + 1) * 2,
            tiles.cta_of(begin + kv_tiles - 1) - cta + 1};
  }
  static OCTAVO_DEVICE Cut cut_of(const Tiles& tiles, i32 work_tile) {
    i32 begin;
    const Cursor at = tiles.begin_of(work_tile, begin);
    return {at, parts_from(tiles, begin, at.keys.kv_tiles, tiles.cta_of(begin))};
  }
  // The work tile that is cut between CTAs `boundary` and `boundary + 1`, if it begins in the
  // first of them.
  static OCTAVO_DEVICE Cut cut_at(const Tiles& tiles, i32 boundary) {
    const i32 first = tiles.first_tile(boundary), next = tiles.first_tile(boundary + 1);
    const Cursor at = tiles.find(min_of(next, tiles.total - 1));
    const i32 begin = next - at.kv_tile;
    if (first == next || next == tiles.total || at.kv_tile == 0 || begin < first) return {at, {}};
    return {at, parts_from(tiles, begin, at.keys.kv_tiles, boundary)};
  }

  static OCTAVO_DEVICE void entry(const Params& p) {
    if constexpr (C.batch_invariant)
      run_fixed(p);
    else
      run_even(p);
  }
};

template <class Config>
OCTAVO_KERNEL(32 * kMostCombineWarps, 1)
decode_combine(const OCTAVO_GRID_CONSTANT Params p) {
  CombineKernel<Config>::entry(p);
}

}  // namespace octavo::decode
