// SPDX-License-Identifier: Apache-2.0
// Combines the warps of a CTA at the end of a work tile. Each warp has seen a part of the keys. The
// warps add up their O, each for a part of the columns, and store the result, or a partial result
// if other CTAs hold more of the keys.
#pragma once

#include "device/core/score_rows.cuh"
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

  // `stage`: the pipeline stage that all warps have consumed. `partial`: the number of the partial
  // result; -1 if the result is complete.
  static OCTAVO_DEVICE void run(State& state, const Params& p, const WorkTile& work,
                                const SequenceSpan& span, i32 partial, const Thread& thread,
                                int stage) {
    NumericsOf<G>::finish_o(state, thread);
    ptx::cta_sync();  // no warp still reads K and V in the stage
    send(state, thread, stage);
    ptx::cta_sync();
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < (G::kTransposed ? 1 : 2); ++r)
        finish(p, work, span, partial, thread, stage, m, r);
    }
    ptx::cta_sync();  // the stage may be filled again
  }

 private:
  static OCTAVO_DEVICE void send(State& state, const Thread& thread, int stage) {
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

  static OCTAVO_DEVICE void finish(const Params& p, const WorkTile& work, const SequenceSpan& span,
                                   i32 partial, const Thread& thread, int stage, int m, int r) {
    const i32 row = thread.whole_row(m, r);
    float ref_max = kLowest, sum = 0;
    OCTAVO_UNROLL
    for (u32 w = 0; w < C.warps; ++w)
      ref_max = ptx::max_f32(ref_max, ptx::load_shared_f32(G::exchanged_row(w, row, 0)));
    float o[kMyTiles][2] = {};
    OCTAVO_UNROLL
    for (u32 w = 0; w < C.warps; ++w) {
      const float factor =
          ptx::exp2_approx(ptx::load_shared_f32(G::exchanged_row(w, row, 0)) - ref_max);
      sum = ptx::fused_multiply_add(ptx::load_shared_f32(G::exchanged_row(w, row, 1)), factor, sum);
      OCTAVO_UNROLL
      for (int n = 0; n < kMyTiles; ++n) {
        OCTAVO_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int tile = static_cast<int>(thread.warp) * kMyTiles + n;
          o[n][e] = ptx::fused_multiply_add(
              ptx::load_shared_f32(address_of(thread, stage, w, m, r, tile, e)), factor, o[n][e]);
        }
      }
    }
    if (row >= work.rows) return;
    NumericsOf<G>::scale_o(o, p, work, thread);
    const bool writes_row = thread.warp == 0 && thread.lane % 4 == 0;
    if (partial >= 0) {
      const Partial<G> to(p, partial);
      if (writes_row) {
        ptx::store_global_f32(to.ref_max(row), ref_max);
        ptx::store_global_f32(to.sum(row), sum);
      }
      store_columns<Element::f32>(reinterpret_cast<u8*>(to.o(row, 0)), o, {.factor = 1}, C.head_dim,
                                  thread);
      return;
    }
    const bool padding = is_padding(span, work.token(p, row));
    const FinishedRow finished = finish_row(p, work.head(p, row), padding, ref_max, sum);
    if (writes_row) store_lse(p, work, row, finished.lse);
    store_columns<C.out>(out_row<C.out>(p, work, row), o, finished, p.head_dim, thread);
  }

  template <Element kOut>
  static OCTAVO_DEVICE void store_columns(u8* row, const float (&o)[kMyTiles][2],
                                          const FinishedRow& finished, i32 columns,
                                          const Thread& thread) {
    const u32 first = thread.warp * kMyTiles;
    OCTAVO_UNROLL
    for (int n = 0; n < kMyTiles; n += Operands::kPairedColumns ? 2 : 1) {
      const u32 column = Operands::column(first + static_cast<u32>(n), 0, thread.lane);
      if (static_cast<i32>(column) >= columns) continue;
      if constexpr (Operands::kPairedColumns) {
        // Four neighbouring columns: tile n holds the even ones, tile n + 1 the odd.
        store_pair<kOut>(row, column, finished.value(o[n][0]), finished.value(o[n + 1][0]));
        store_pair<kOut>(row, column + 2, finished.value(o[n][1]), finished.value(o[n + 1][1]));
      } else {
        store_pair<kOut>(row, column, finished.value(o[n][0]), finished.value(o[n][1]));
      }
    }
  }
};

}  // namespace octavo::decode
