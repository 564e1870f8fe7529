// Forward attention on mma.sync: o = softmax(scale * q k^T) v, for Ampere, Ada and later chips.
//
// A CTA owns block_m query rows of one head. warps_m warps divide the rows; warps_n warps divide
// the keys of every step among themselves, each with its own running maximum, sum and O, which
// are combined through shared memory at the end (small grids need the parallelism).
//
//   shared memory   what                                     bytes
//   q               block_m rows                             sm80::q_bytes
//   kv[stages]      warps_n * block_n rows of K, then of V   sm80::kv_stage_bytes each
//   afterwards, from the start: partial results of the warps along the keys, then the tile of O
//
//   time (stages = 2)   copies in flight        every warp
//   step j              kv[j+1]                 wait kv[j], CTA barrier, start kv[j+1],
//                                               s = q k^T, mask, softmax, o += p v
//   The one barrier of a step does two things: kv[j] of all threads has arrived, and all warps are
//   done with kv[j-1], whose buffer the copies of the step overwrite.
//
//   named barrier          arrive                     wait         what becomes true
//   full[s] (2 + s)        producer warps             math warps   the step's K and V are there
//   empty[s] (after them)  math warps                 producers    the buffer may be overwritten
//   math (1)               math warps                 math warps   in place of the CTA's barrier
//   The table holds with producer_warps; without them every warp copies and computes.
#pragma once

#include "config/sm80_forward.h"
#include "device/core/block_range.cuh"
#include "device/core/params.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/sm80/epilogue.cuh"
#include "device/sm80/geometry.cuh"
#include "device/sm80/products.cuh"
#include "device/sm80/softmax.cuh"

namespace octavo::sm80 {

template <class Config>
struct ForwardKernel {
  using G = Geometry<Config>;
  using Place = typename G::Place;
  using State = typename G::State;
  static constexpr Sm80ForwardConfig C = G::C;
  static constexpr int kGroups = C.v_barrier ? 2 : 1;  // cp.async groups of a step

  static OCTAVO_DEVICE GlobalRows global_rows(const void* data, const Strides& s, const Place& w,
                                              i32 head, i32 first, i32 head_dim) {
    constexpr int kBytes = element_bytes(C.element);
    const i64 offset = w.batch * s.batch + head * s.head + first * s.row;
    return {static_cast<const u8*>(data) + offset * kBytes, s.row * kBytes, head_dim * kBytes};
  }

  static OCTAVO_DEVICE u32 copy_thread(const Place& w) {
    return C.producer_warps > 0 ? w.thread - G::kMathThreads : w.thread;
  }

  static OCTAVO_DEVICE void load_q(const ForwardParams& p, const Place& w) {
    RowLoader<C.block_m, G::kCopyThreads, C.load_bytes, row_bytes(C)> loader(
        global_rows(p.q, p.q_strides, w, w.head, w.at.q_begin + w.first_row, p.head_dim),
        copy_thread(w));
    loader.load(G::q_tile(), w.at.len_q - w.first_row);
  }

  // What remains to be copied of K and V.
  struct Copies {
    RowLoader<step_keys(C), G::kCopyThreads, C.load_bytes, row_bytes(C), C.keep_kv> k, v;
    i32 rows;  // that exist
    i32 end;   // of those, how many are beyond the last step's first
  };
  static OCTAVO_DEVICE Copies copies_of(const ForwardParams& p, const Place& w,
                                        const BlockRange& range) {
    const i32 head = w.head / p.heads_per_kv;
    const i32 token = w.at.kv_begin + range.begin;
    return {{global_rows(p.k, p.k_strides, w, head, token, p.head_dim), copy_thread(w)},
            {global_rows(p.v, p.v_strides, w, head, token, p.head_dim), copy_thread(w)},
            w.at.len_kv - range.begin,
            w.at.len_kv - range.end};
  }
  // Starts the copies of a step, or none past the last: the count of groups stays the same.
  static OCTAVO_DEVICE void load_step(Copies& copies, int stage) {
    const bool any = copies.rows > copies.end;
    if (any) copies.k.load(G::k_tile(stage), copies.rows);
    if constexpr (C.v_barrier) ptx::cp_async_commit();
    if (any) copies.v.load(G::v_tile(stage), copies.rows);
    ptx::cp_async_commit();
    copies.rows -= step_keys(C);
  }

  // Columns that pad the head dimension arrive as zero bytes, which sim8 reads as -128: the zero
  // code in Q's makes their products vanish.
  static OCTAVO_DEVICE void clear_q_padding(const ForwardParams& p, const Place& w) {
    const u32 columns = static_cast<u32>(C.head_dim - p.head_dim);
    OCTAVO_ROLLED
    for (u32 i = w.thread; i < C.block_m * columns; i += G::kMathThreads)
      ptx::store_shared_b8(
          G::q_tile().byte_address(i / columns, static_cast<u32>(p.head_dim) + i % columns), 128);
  }

  static OCTAVO_DEVICE void init(State& state, const ForwardParams& p, const Place& w) {
    OCTAVO_UNROLL
    for (int m = 0; m < G::kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int half = 0; half < 2; ++half) {
        state.origin[m][half] = kLowest;
        state.sum[m][half] = 0;
        state.scale[m][half] = p.scale_log2;
        if constexpr (G::kRowScales) state.scale[m][half] *= row_scale(p, w, m, half);
      }
      OCTAVO_UNROLL
      for (int n = 0; n < G::kTilesD; ++n) {
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) state.o[m][n][e] = 0;
      }
    }
  }

  // The scale of a row of Q, times that of K where a whole head has one.
  static OCTAVO_DEVICE float row_scale(const ForwardParams& p, const Place& w, int m, int half) {
    const ScaleParams& q = p.q_scales;
    const i32 row = min_of(w.first_row + static_cast<i32>(w.row(m, half)), w.at.len_q - 1);
    const i32 index = ((q.by_token ? w.at.q_begin : 0) + row) / q.block_rows;
    float scale = ptx::load_global_f32(q.data + w.sequence * q.batch + w.head * q.head +
                                       static_cast<i64>(index) * q.stride);
    if constexpr (!C.k_row_scales)
      scale *= ptx::load_global_f32(p.k_scales.data + w.sequence * p.k_scales.batch +
                                    w.head / p.heads_per_kv * p.k_scales.head);
    return scale;
  }

  static OCTAVO_DEVICE void wait_for_v() {
    if constexpr (C.v_barrier) {
      ptx::cp_async_wait<kGroups*(C.stages - 1)>();
      ptx::cta_sync();
    }
  }

  // One block of keys, from scores to O.
  static OCTAVO_DEVICE void block(State& state, const typename G::QFragments& q,
                                  const BlockRange& range, const ForwardParams& p, const Place& w,
                                  i32 key, int stage) {
    typename G::Scores scores;
    Products<G>::qk(scores, q, w, stage);
    if (p.negate) Softmax<G>::negate(scores);
    if constexpr (C.k_row_scales) Softmax<G>::scale_keys(scores, p, w, key);
    if (range.needs_mask(key, C.block_n)) Softmax<G>::apply_mask(scores, p, w, key);
    if constexpr (G::Operands::kFoldBlocks) {
      typename Softmax<G>::Fold fold;
      Softmax<G>::fold_step(scores, state, fold);
      wait_for_v();
      Products<G>::pv_folded(state, scores, fold, w, stage);
    } else {
      Softmax<G>::raise_origins(scores, state);
      wait_for_v();
      Products<G>::pv(state, scores, w, stage);
    }
  }

  // Warps that only copy (producer_warps): a step's buffer is filled when the math warps left it,
  // and announced when the copies of all but the newest stages - 1 steps have landed.
  static OCTAVO_DEVICE int full(int stage) { return 2 + stage; }
  static OCTAVO_DEVICE int empty(int stage) { return 2 + C.stages + stage; }
  static OCTAVO_DEVICE int next(int stage) { return stage + 1 == C.stages ? 0 : stage + 1; }

  static OCTAVO_DEVICE void produce(const ForwardParams& p, const Place& w, const BlockRange& range,
                                    int steps) {
    if (steps == 0) return;
    load_q(p, w);
    Copies copies = copies_of(p, w, range);
    int stage = 0;
    for (int j = 0; j < steps + C.stages - 1; ++j) {
      if (j >= C.stages && j < steps) ptx::named_barrier_sync(empty(stage), G::kThreads);
      load_step(copies, stage);
      stage = next(stage);
      if (j < C.stages - 1) continue;
      ptx::cp_async_wait<C.stages - 1>();
      ptx::named_barrier_arrive(full(stage), G::kThreads);
    }
  }

  // K and V of step j have arrived; where every warp copies, those of a later step are started.
  static OCTAVO_DEVICE void begin_step(Copies& copies, int stage) {
    if constexpr (C.stages == 1) {
      G::math_sync();  // every warp is done with the only buffer
      load_step(copies, 0);
    }
    // Groups that may still be in flight: the later stages', and V's own.
    ptx::cp_async_wait<kGroups * max_of(C.stages - 2, 0) + kGroups - 1>();
    G::math_sync();
    if constexpr (C.stages > 1) load_step(copies, stage == 0 ? C.stages - 1 : stage - 1);
  }

  static OCTAVO_DEVICE void prepare_q(typename G::QFragments& q, const ForwardParams& p,
                                      const Place& w) {
    if (C.element == Element::sim8 && p.head_dim < C.head_dim) {
      clear_q_padding(p, w);
      G::math_sync();
    }
    if constexpr (C.q_in_registers) Products<G>::load_q(q, w);
  }

  static OCTAVO_DEVICE void math(const ForwardParams& p, const Place& w, const BlockRange& range,
                                 int steps) {
    Copies copies = copies_of(p, w, range);
    if constexpr (C.producer_warps == 0) {
      if (steps > 0) load_q(p, w);
      OCTAVO_UNROLL
      for (int stage = 0; stage < C.stages - 1; ++stage) load_step(copies, stage);
    }
    State state;
    init(state, p, w);
    typename G::QFragments q;
    int stage = 0;
    OCTAVO_UNROLL_BY(C.unroll)
    for (int j = 0; j < steps; ++j) {
      if constexpr (C.producer_warps > 0)
        ptx::named_barrier_sync(full(stage), G::kThreads);
      else
        begin_step(copies, stage);
      if (j == 0) prepare_q(q, p, w);
      const i32 key = range.begin + j * step_keys(C) + static_cast<i32>(w.warp_n) * C.block_n;
      block(state, q, range, p, w, key, stage);
      if (C.producer_warps > 0 && j + C.stages < steps)
        ptx::named_barrier_arrive(empty(stage), G::kThreads);
      stage = next(stage);
    }
    ptx::cp_async_wait<0>();
    if constexpr (C.warps_n > 1) Epilogue<G>::combine(state, w);
    if (w.warp_n == 0) Epilogue<G>::finish(state, p, w);
    Epilogue<G>::store_o(state, p, w);
  }

  static OCTAVO_DEVICE void run_tile(const ForwardParams& p, Place& w, i32 tile) {
    // The last rows of a causal mask see the most keys: they start first.
    w.first_row = (p.row_tiles - 1 - tile % p.row_tiles) * C.block_m;
    w.head = tile / p.row_tiles % p.heads_q;
    w.sequence = tile / p.row_tiles / p.heads_q;
    w.batch = p.cu_seqlens_q == nullptr ? w.sequence : 0;
    w.at = sequence_span(p, w.sequence);
    if (w.first_row >= w.at.len_q) return;
    const BlockRange range = block_range(p, w.at, w.first_row, C.block_m, step_keys(C));
    const int steps = div_up(max_of(range.end - range.begin, 0), step_keys(C));
    if (C.producer_warps > 0 && w.thread >= G::kMathThreads)
      produce(p, w, range, steps);
    else
      math(p, w, range, steps);
  }

  static OCTAVO_DEVICE void entry(const ForwardParams& p) {
    Place w;
    const u32 warp = ptx::warp_index();
    w.warp_m = warp % C.warps_m;
    w.warp_n = warp / C.warps_m;
    w.lane = ptx::lane_index();
    w.thread = ptx::thread_index();
    if constexpr (C.persistent) {
      for (i32 tile = ptx::block_index_x(); tile < p.tiles; tile += ptx::grid_size_x()) {
        run_tile(p, w, tile);
        ptx::cta_sync();  // the last tile's shared memory is no longer read
      }
    } else {
      run_tile(p, w, ptx::block_index_x());
    }
  }
};

template <class Config>
OCTAVO_KERNEL(threads(Config::value), 1)
sm80_forward(const OCTAVO_GRID_CONSTANT ForwardParams p) {
  ForwardKernel<Config>::entry(p);
}

}  // namespace octavo::sm80
