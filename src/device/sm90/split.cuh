// The forward kernel for grids too small to fill the chip: warpgroups, and CTAs of a cluster,
// divide the keys of the same 64 query rows, and put their results together in the same launch.
//
// Not for packed batches. Nobody only loads: each warpgroup has buffers of its own, filled before
// the CTA's first barrier, and filled again by itself where its blocks are more than its buffers.
//
//   at the end     each part (warpgroup, CTA) has o, maximum and sum over its own keys
//   in the CTA     warpgroup g gathers the columns of chunk g of all, through shared memory
//   in the cluster CTA r gathers the r-th piece of those, sent by st.async to its `receive` area
//   then           o / sum is written from registers
//
//   barrier        who arrives                    who waits         becomes true
//   q_full         thread 0, and Q's bytes        all               Q is there
//   k_full, v_full the buffer's loader, bytes     its warpgroup     a block is there
//   last_barrier   thread 0, and all pieces       all               pieces of the other CTAs are
//   there
#pragma once

#include "device/ptx/cluster.cuh"
#include "device/ptx/fence.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/sm90/epilogue.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/mainloop.cuh"
#include "device/sm90/schedule.cuh"

namespace octavo::sm90 {

template <class Config>
struct SplitKernel {
  using G = Geometry<Config>;
  using Place = typename G::Place;
  using State = typename G::State;
  using KvRing = typename G::KvRing;
  static constexpr Sm90Forward C = G::C;
  static constexpr int kParts = C.warpgroups * C.cluster;
  static constexpr int kChunk = chunk_columns(C, C.warpgroups) / 2;  // registers of a chunk
  static constexpr int kPiece = chunk_columns(C, kParts) / 2;        // and of a piece of it
  static constexpr int kHanded = handed_floats(C, kParts);
  static_assert(!C.split_keys || chunk_columns(C, kParts) % 8 == 0,
                "pieces of O are whole groups of eight columns");

  // Every tile has rows, and its length is known: batches are not packed here.
  static OCTAVO_DEVICE Tile tile_of(const Sm90ForwardParams& p, i32 index) {
    const i32 head = p.by_row_tiles.quotient(index);
    Tile t;
    t.first_row = (index - head * p.row_tiles) * kRows;
    t.sequence = t.batch = p.by_heads_q.quotient(head);
    t.head = head - t.sequence * p.heads_q;
    t.at = {0, p.len_q, 0, p.len_kv};
    const BlockRange range = block_range(p, t.at, t.first_row, kRows, C.block_n);
    t.begin = range.begin;
    t.blocks = div_up(max_of(range.end - range.begin, 0), C.block_n);
    return t;
  }

  // A part's blocks of keys.
  struct Share {
    i32 key = 0;
    i32 blocks = 0;
  };
  static OCTAVO_DEVICE Share share_of(const Tile& t, u32 part) {
    const i32 first = t.blocks * static_cast<i32>(part) / kParts;
    const i32 last = t.blocks * static_cast<i32>(part + 1) / kParts;
    return {t.begin + first * C.block_n, last - first};
  }

  // --- load -------------------------------------------------------------------------------------

  static OCTAVO_DEVICE void load_k(const Sm90ForwardParams& p, const Tile& t, i32 key, u32 stage) {
    ptx::mbarrier_arrive_expect_tx(G::k_full(stage), G::S.k_stage);
    G::load_rows(p.k, G::k_tile(stage), G::k_full(stage), C.block_n, key,
                 p.by_heads_per_kv.quotient(t.head), t.batch);
  }
  static OCTAVO_DEVICE void load_v(const Sm90ForwardParams& p, const Tile& t, i32 key, u32 stage) {
    ptx::mbarrier_arrive_expect_tx(G::v_full(stage), G::S.k_stage);
    G::load_rows(p.v, G::v_tile(stage), G::v_full(stage), C.block_n, key,
                 p.by_heads_per_kv.quotient(t.head), t.batch);
  }
  // Everything the CTA's buffers hold at first, by one thread, in the order it is needed.
  static OCTAVO_DEVICE void load_first(const Sm90ForwardParams& p, const Tile& t, u32 rank) {
    ptx::mbarrier_arrive_expect_tx(G::q_full(0), G::S.q_tile);
    G::load_rows(p.q, G::q_tile(0), G::q_full(0), kRows, t.first_row, t.head, t.batch);
    OCTAVO_UNROLL
    for (int stage = 0; stage < C.stages; ++stage) {
      OCTAVO_UNROLL
      for (u32 group = 0; group < C.warpgroups; ++group) {
        const Share share = share_of(t, rank * C.warpgroups + group);
        if (stage < share.blocks)
          load_k(p, t, share.key + stage * C.block_n, group * C.stages + stage);
      }
      OCTAVO_UNROLL
      for (u32 group = 0; group < C.warpgroups; ++group) {
        const Share share = share_of(t, rank * C.warpgroups + group);
        if (stage < share.blocks)
          load_v(p, t, share.key + stage * C.block_n, group * C.stages + stage);
      }
    }
  }

  // Buffers that this warpgroup fills itself.
  struct Feed {
    const Sm90ForwardParams& p;
    const Tile& t;
    KvRing k, v;
    i32 k_key, v_key, end;  // the next blocks to load, and where they end

    OCTAVO_DEVICE void release_k(const Place& w) {
      if (k_key < end) {
        Epilogue<G>::group_sync(w);
        if (w.warp == 0 && w.lane == 0) load_k(p, t, k_key, k.stage);
        k_key += C.block_n;
      }
      k.advance();
    }
    OCTAVO_DEVICE void release_v(const Place& w) {
      if (v_key < end) {
        Epilogue<G>::group_sync(w);
        if (w.warp == 0 && w.lane == 0) load_v(p, t, v_key, v.stage);
        v_key += C.block_n;
      }
      v.advance();
    }
    OCTAVO_DEVICE void release_q(const Place& /*w*/) {}
  };

  // --- math -------------------------------------------------------------------------------------

  // A thread's results on the way to the thread that puts the same rows together.
  static OCTAVO_DEVICE float sum_of(const State& state, u32 half) {
    if constexpr (C.ones) return state.o[G::kColumns + half * 2];
    float sum = state.sum[half];
    sum += ptx::shuffle_xor(sum, 1);
    return sum + ptx::shuffle_xor(sum, 2);
  }

  // kSize registers of O with the maxima and sums they stand on.
  template <int kSize>
  struct Partial {
    float o[kSize];
    float max[2];
    float sum[2];
  };

  template <int kSize>
  static OCTAVO_DEVICE void merge(Partial<kSize>& mine, const Partial<kSize>& other, float scale) {
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float largest = ptx::max_f32(mine.max[half], other.max[half]);
      const float origin = origin_of(largest, scale);
      const float by = weight_of(mine.max[half], scale, origin);
      const float other_by = weight_of(other.max[half], scale, origin);
      mine.max[half] = largest;
      mine.sum[half] = mine.sum[half] * by + other.sum[half] * other_by;
      OCTAVO_UNROLL
      for (int i = 0; i < kSize / 4; ++i) {
        OCTAVO_UNROLL
        for (int e = half * 2; e < half * 2 + 2; ++e)
          mine.o[i * 4 + e] = mine.o[i * 4 + e] * by + other.o[i * 4 + e] * other_by;
      }
    }
  }

  // Registers of chunk `index`, which is not known to the compiler: a choice, not an address.
  template <int kSize, int kCount>
  static OCTAVO_DEVICE void select(float (&to)[kSize], const float (&from)[kCount], int columns,
                                   u32 index) {
    OCTAVO_UNROLL
    for (int i = 0; i < kSize; ++i) {
      float x = from[i];
      OCTAVO_UNROLL
      for (u32 c = 1; c < static_cast<u32>(columns / kSize); ++c)
        x = index == c ? from[c * kSize + i] : x;
      to[i] = x;
    }
  }

  // Slot of one float that warpgroup `from` leaves for the one `step` after it: a thread meets the
  // one with its own rows and columns, so that neither needs an address but its number.
  static OCTAVO_DEVICE u32 slot(u32 from, u32 step, u32 i, u32 thread) {
    constexpr u32 kFloats = handed_floats(C, C.warpgroups);
    return ptx::shared_base() + G::S.combine +
           (((from * (C.warpgroups - 1) + step - 1) * kFloats + i) * kWarpgroup + thread) * 4;
  }

  // This warpgroup's chunk over all warpgroups of the CTA.
  static OCTAVO_DEVICE void combine_groups(Partial<kChunk>& mine, const State& state,
                                           const Place& w, float scale) {
    const u32 thread = w.warp * 32 + w.lane;
    ptx::cta_sync();  // K and V are no longer read
    OCTAVO_UNROLL
    for (u32 step = 1; step < C.warpgroups; ++step) {
      float o[kChunk];
      select(o, state.o, G::kColumns, (w.group + step) % C.warpgroups);
      OCTAVO_UNROLL
      for (u32 i = 0; i < kChunk; ++i) ptx::store_shared_f32(slot(w.group, step, i, thread), o[i]);
      OCTAVO_UNROLL
      for (u32 half = 0; half < 2; ++half) {
        ptx::store_shared_f32(slot(w.group, step, kChunk + half, thread), mine.max[half]);
        ptx::store_shared_f32(slot(w.group, step, kChunk + 2 + half, thread), mine.sum[half]);
      }
    }
    ptx::cta_sync();
    OCTAVO_UNROLL
    for (u32 step = 1; step < C.warpgroups; ++step) {
      const u32 from = (w.group + step) % C.warpgroups;
      const u32 back = C.warpgroups - step;
      Partial<kChunk> other;
      OCTAVO_UNROLL
      for (u32 i = 0; i < kChunk; ++i)
        other.o[i] = ptx::load_shared_f32(slot(from, back, i, thread));
      OCTAVO_UNROLL
      for (u32 half = 0; half < 2; ++half) {
        other.max[half] = ptx::load_shared_f32(slot(from, back, kChunk + half, thread));
        other.sum[half] = ptx::load_shared_f32(slot(from, back, kChunk + 2 + half, thread));
      }
      merge(mine, other, scale);
    }
  }

  // Where the piece of CTA `step` places after this one, of 16 bytes each, arrives.
  static OCTAVO_DEVICE u32 received(u32 step, u32 i, u32 thread) {
    return ptx::shared_base() + G::S.receive +
           (((step - 1) * (kHanded / 4) + i) * threads(C) + thread) * 16;
  }

  // This CTA's piece of the chunk over all CTAs of the cluster.
  static OCTAVO_DEVICE void combine_ctas(Partial<kPiece>& mine, const Partial<kChunk>& chunk,
                                         u32 rank, float scale) {
    const u32 thread = ptx::thread_index();
    ptx::cluster_wait();  // the others' barriers are ready
    OCTAVO_UNROLL
    for (u32 step = 1; step < C.cluster; ++step) {
      const u32 to = (rank + step) % C.cluster;
      float o[kPiece];
      select(o, chunk.o, kChunk, to);
      const u32 bar = ptx::map_to_cta(G::last_barrier(), to);
      OCTAVO_UNROLL
      for (u32 i = 0; i < kPiece / 4; ++i)
        ptx::st_async_b128(ptx::map_to_cta(received(C.cluster - step, i, thread), to),
                           {ptx::bits_of(o[i * 4]), ptx::bits_of(o[i * 4 + 1]),
                            ptx::bits_of(o[i * 4 + 2]), ptx::bits_of(o[i * 4 + 3])},
                           bar);
      ptx::st_async_b128(ptx::map_to_cta(received(C.cluster - step, kPiece / 4, thread), to),
                         {ptx::bits_of(chunk.max[0]), ptx::bits_of(chunk.max[1]),
                          ptx::bits_of(chunk.sum[0]), ptx::bits_of(chunk.sum[1])},
                         bar);
    }
    select(mine.o, chunk.o, kChunk, rank);
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      mine.max[half] = chunk.max[half];
      mine.sum[half] = chunk.sum[half];
    }
    ptx::mbarrier_wait_cluster(G::last_barrier(), 0);
    OCTAVO_UNROLL
    for (u32 step = 1; step < C.cluster; ++step) {
      Partial<kPiece> other;
      OCTAVO_UNROLL
      for (u32 i = 0; i < kPiece; ++i)
        other.o[i] = ptx::load_shared_f32(received(step, i / 4, thread) + i % 4 * 4);
      OCTAVO_UNROLL
      for (u32 half = 0; half < 2; ++half) {
        other.max[half] = ptx::load_shared_f32(received(step, kPiece / 4, thread) + half * 4);
        other.sum[half] = ptx::load_shared_f32(received(step, kPiece / 4, thread) + 8 + half * 4);
      }
      merge(mine, other, scale);
    }
  }

  // kSize registers of O, from column `first` on, and LSE.
  template <int kSize>
  static OCTAVO_DEVICE void store(const Partial<kSize>& mine, const Sm90ForwardParams& p,
                                  const Place& w, i32 first) {
    constexpr int kBytes = element_bytes(C.out);
    OCTAVO_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      const i32 row = w.row(half);
      if (row >= w.at.len_q) continue;
      const float sum = mine.sum[half];
      const float inverse = sum == 0.0f ? 0.0f : ptx::reciprocal_approx(sum);
      u8* const out = Epilogue<G>::row_of(p, w, row);
      OCTAVO_UNROLL
      for (int i = 0; i < kSize / 4; ++i) {
        const i32 column = first + i * 8 + static_cast<i32>(w.lane % 4 * 2);
        if (column >= p.head_dim) break;
        Epilogue<G>::store_pair(out + column * kBytes, mine.o[i * 4 + half * 2] * inverse,
                                mine.o[i * 4 + half * 2 + 1] * inverse);
      }
      if (first == 0) Epilogue<G>::store_lse(mine.max[half], sum, p, w, row);
    }
  }

  static OCTAVO_DEVICE void math(const Sm90ForwardParams& p, const Tile& t, u32 rank) {
    Place w;
    w.group = ptx::warp_index() / 4;
    w.q_tile = 0;
    w.warp = ptx::warp_index() % 4;
    w.lane = ptx::lane_index();
    w.at = t.at;
    w.batch = t.batch;
    w.head = t.head;
    w.first_row = t.first_row;
    State state;
    Mainloop<G>::init(state);
    const Share share = share_of(t, rank * C.warpgroups + w.group);
    if (share.blocks > 0) {
      const BlockRange range = block_range(p, w.at, w.first_row, kRows, C.block_n);
      const KvRing ring{w.group * C.stages};
      const i32 next = share.key + C.stages * C.block_n;
      Feed feed{p, t, ring, ring, next, next, share.key + share.blocks * C.block_n};
      ptx::mbarrier_wait(G::q_full(0), 0);
      Mainloop<G>::run(state, p, w, range, share.key, share.blocks, feed);
    }
    Partial<kChunk> chunk;
    select(chunk.o, state.o, G::kColumns, w.group);
    OCTAVO_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      chunk.max[half] = state.max[half];
      chunk.sum[half] = sum_of(state, half);
    }
    if constexpr (C.warpgroups > 1) combine_groups(chunk, state, w, p.scale_log2);
    const i32 first = static_cast<i32>(w.group) * kChunk * 2;
    if constexpr (C.cluster > 1) {
      Partial<kPiece> piece;
      combine_ctas(piece, chunk, rank, p.scale_log2);
      store(piece, p, w, first + static_cast<i32>(rank) * kPiece * 2);
    } else {
      store(chunk, p, w, first);
    }
  }

  // --- entry ------------------------------------------------------------------------------------

  static OCTAVO_DEVICE void init_barriers() {
    ptx::mbarrier_init(G::q_full(0), 1);
    OCTAVO_UNROLL
    for (u32 stage = 0; stage < kv_buffers(C); ++stage) {
      ptx::mbarrier_init(G::k_full(stage), 1);
      ptx::mbarrier_init(G::v_full(stage), 1);
    }
    if constexpr (C.cluster > 1) {
      ptx::mbarrier_init(G::last_barrier(), 1);
      ptx::mbarrier_arrive_expect_tx(G::last_barrier(), (C.cluster - 1) * kHanded * 4 * threads(C));
    }
    ptx::fence_mbarrier_init();
  }

  // Thread 0 has the longest way before the first keys arrive: it starts with what needs no
  // parameter, whose first read is slow, and the other warps write the ones.
  static OCTAVO_DEVICE void entry(const Sm90ForwardParams& p) {
    const u32 thread = ptx::thread_index();
    if (thread == 0) init_barriers();
    const u32 rank = C.cluster > 1 ? ptx::cluster_cta_rank() : 0;
    const Tile t = tile_of(p, ptx::block_index_x() / C.cluster);
    if (thread == 0 && t.blocks > 0) load_first(p, t, rank);
    if constexpr (C.cluster > 1) ptx::cluster_arrive_relaxed();
    if (C.ones && thread >= 32) {
      G::template fill_ones<threads(C) - 32>(thread - 32);
      ptx::fence_proxy_async();
    }
    ptx::cta_sync();
    math(p, t, rank);
  }
};

}  // namespace octavo::sm90
