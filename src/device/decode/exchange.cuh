// SPDX-License-Identifier: Apache-2.0
// Combines the warps of a CTA at the end of a work tile. Each warp has seen a part of the keys. The
// warps add up their O, each for a part of the columns, and store the result, or a partial result
// if other CTAs hold more of the keys.
#pragma once

#include "device/core/score_rows.cuh"
#include "device/decode/cluster.cuh"
#include "device/decode/geometry.cuh"
#include "device/decode/output.cuh"
#include "device/decode/policies.cuh"

namespace octavo::decode {

template <class G>
struct Exchange {
  using Thread = typename G::Thread;
  using State = typename G::State;
  using Operands = typename G::Operands;
  static constexpr DecodeConfig C = G::C;
  static constexpr int kTilesM = G::kTilesM;
  static constexpr int kMyTiles = G::kTilesD / C.warps;  // tiles of columns that a warp adds up

  // `stage`: the pipeline stage that all warps have consumed. Calls store(Row) for each row.
  template <class Store>
  static OCTAVO_DEVICE void run(State& state, const Params& p, const WorkTile& work,
                                const Thread& thread, int stage, const Store& store) {
    NumericsOf<G>::finish_o(state, thread);
    ptx::cta_sync();  // no warp still reads K and V in the stage
    share(state, thread, stage);
    ptx::cta_sync();
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < (G::kTransposed ? 1 : 2); ++r)
        finish(p, work, thread, stage, m, r, store);
    }
    // The stage may be filled again, unless this was the only work tile.
    if constexpr (!C.clusters) ptx::cta_sync();
  }

  // A row over the keys of the CTA, and the warp's columns of its O.
  struct Row {
    i32 row = 0;
    float ref_max = kLowest, sum = 0;
    float o[kMyTiles][2] = {};
  };

  // Stores a row of a partial result, or of the result. `partial`: its number; -1 if the result is
  // complete.
  static OCTAVO_DEVICE void store(const Params& p, const WorkTile& work, const SequenceSpan& span,
                                  i32 partial, const Row& x, const Thread& thread) {
    const bool writes_rows = thread.warp == 0 && thread.lane % 4 == 0;
    if (partial >= 0) {
      const Partial<G> to(p, partial);
      if (writes_rows) {
        ptx::store_global_f32(to.ref_max(x.row), x.ref_max);
        ptx::store_global_f32(to.sum(x.row), x.sum);
      }
      store_columns<Element::f32>(reinterpret_cast<u8*>(to.o(x.row, 0)), x, {.factor = 1},
                                  C.head_dim, thread);
      return;
    }
    const bool padding = is_padding(span, work.token(p, x.row));
    const FinishedRow finished = finish_row(p, work.head(p, x.row), padding, x.ref_max, x.sum);
    if (writes_rows) store_lse(p, work, x.row, finished.lse);
    store_columns<C.out>(out_row<C.out>(p, work, x.row), x, finished, p.head_dim, thread);
  }

  // Sends a row of a part to the CTAs of the cluster.
  static OCTAVO_DEVICE void send(const Cluster<G>& cluster, const Row& x, const Thread& thread) {
    for_each_pair(x, thread, [&](u32 column, float low, float high) {
      cluster.send_pair(x.row, column, low, high);
    });
    if (thread.lane % 4 != 0) return;
    OCTAVO_ROLLED
    for (i32 to = static_cast<i32>(thread.warp); to < cluster.ctas(); to += C.warps)
      cluster.send_row(x.row, to, x.ref_max, x.sum);
  }

 private:
  static OCTAVO_DEVICE void share(State& state, const Thread& thread, int stage) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int n = 0; n < G::kOTiles; ++n) {
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e)
          ptx::store_shared_f32(G::exchanged_o(stage, thread.warp, index(m, n, e), thread.lane),
                                state.o[m][n][e]);
      }
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const float sum = Thread::row_sum(state.sum[m][r]);
        if (!thread.is_first_of_row()) continue;
        const i32 row = thread.row(m, r);
        ptx::store_shared_f32(G::exchanged_row(thread.warp, row, 0), state.ref_max[m][r]);
        ptx::store_shared_f32(G::exchanged_row(thread.warp, row, 1), sum);
      }
    }
  }
  static OCTAVO_DEVICE u32 index(int m, int n, int e) {
    return static_cast<u32>((m * G::kOTiles + n) * 4 + e);
  }
  // The address of column e of tile n in whole_row(m, r) of warp w's O. Columns and rows of a
  // transposed tile are in other lanes.
  static OCTAVO_DEVICE u32 address_of(const Thread& thread, int stage, u32 w, int m, int r, int n,
                                      int e) {
    if constexpr (!G::kTransposed)
      return G::exchanged_o(stage, w, index(m, n, r * 2 + e), thread.lane);
    const u32 row = thread.lane / 4, column = thread.lane % 4 * 2 + static_cast<u32>(e);
    const u32 first = index(m, n / 2, n % 2);
    return G::exchanged_o(stage, w, first + row % 2 * 2, column * 4 + row / 2);
  }

  template <class Store>
  static OCTAVO_DEVICE void finish(const Params& p, const WorkTile& work, const Thread& thread,
                                   int stage, int m, int r, const Store& store) {
    Row x;
    x.row = thread.whole_row(m, r);
    float ref_max[C.warps], sum[C.warps];
    OCTAVO_UNROLL
    for (u32 w = 0; w < C.warps; ++w) {
      u32 words[2];
      ptx::load_shared_b64(G::exchanged_row(w, x.row, 0), words[0], words[1]);
      ref_max[w] = ptx::float_of_bits(words[0]);
      sum[w] = ptx::float_of_bits(words[1]);
      x.ref_max = ptx::max_f32(x.ref_max, ref_max[w]);
    }
    OCTAVO_UNROLL
    for (u32 w = 0; w < C.warps; ++w) {
      const float factor = ptx::exp2_approx(ref_max[w] - x.ref_max);
      x.sum = ptx::fused_multiply_add(sum[w], factor, x.sum);
      OCTAVO_UNROLL
      for (int n = 0; n < kMyTiles; ++n) {
        OCTAVO_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int tile = static_cast<int>(thread.warp) * kMyTiles + n;
          x.o[n][e] = ptx::fused_multiply_add(
              ptx::load_shared_f32(address_of(thread, stage, w, m, r, tile, e)), factor, x.o[n][e]);
        }
      }
    }
    if (x.row >= work.rows) return;
    NumericsOf<G>::scale_o(x.o, p, work, thread);
    store(x);
  }

  // Calls visit(column, low, high) for each two neighbouring columns of the warp.
  template <class Visit>
  static OCTAVO_DEVICE void for_each_pair(const Row& x, const Thread& thread, const Visit& visit) {
    const u32 first = thread.warp * kMyTiles;
    OCTAVO_UNROLL
    for (int n = 0; n < kMyTiles; n += Operands::kPairedColumns ? 2 : 1) {
      const u32 column = Operands::column(first + static_cast<u32>(n), 0, thread.lane);
      if constexpr (Operands::kPairedColumns) {
        // Four neighbouring columns: tile n holds the even ones, tile n + 1 the odd.
        visit(column, x.o[n][0], x.o[n + 1][0]);
        visit(column + 2, x.o[n][1], x.o[n + 1][1]);
      } else {
        visit(column, x.o[n][0], x.o[n][1]);
      }
    }
  }

  template <Element kOut>
  static OCTAVO_DEVICE void store_columns(u8* row, const Row& x, const FinishedRow& finished,
                                          i32 columns, const Thread& thread) {
    for_each_pair(x, thread, [&](u32 column, float low, float high) {
      if (static_cast<i32>(column) < columns)
        store_pair<kOut>(row, column, finished.value(low), finished.value(high));
    });
  }
};

}  // namespace octavo::decode
