// The forward kernel for grids too small to fill the chip: warpgroups, and CTAs of a cluster,
// divide the keys of the same query rows, and put their results together in the same launch.
//
// Not for packed batches. Nobody only loads: one thread starts everything that the buffers hold
// before the CTA's first barrier, and a part fills its own again where its blocks are more.
//
//   a part       has o, maximum and sum over its own keys, for all columns,
//   hands        to each other part the columns that it puts together (st.async in a cluster), and
//   gathers      its own columns from all of them: o / sum is written from registers.
//
// Where heads are packed, a tile's rows are the queries of several heads that share keys: those of
// one head padded to a power of two, then the next one's. The tensor map of Q has boxes of as many
// heads; rows of heads that do not share the keys are computed and not stored.
//
// clang-format off
//   barrier         who arrives                 who waits             becomes true
//   q_full          thread 0, and Q's bytes     all                   Q is there
//   k_full, v_full  the loader, and the bytes   the part's threads    a block is there
//                   (k_full: its warps too, with scales of keys)
//   pieces_full[g]  thread 0, and the pieces    warpgroup g           the other parts' pieces are there
// clang-format on
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
  using Lane = typename G::Lane;
  using Place = typename G::Place;
  using State = typename G::State;
  using KvRing = typename G::KvRing;
  static constexpr Sm90Forward C = G::C;
  static constexpr int kKeyGroups = key_groups(C);
  static constexpr int kParts = key_parts(C);
  static constexpr int kPiece = piece_columns(C) / 2;  // registers of a piece
  static constexpr int kHanded = handed_floats(C);
  static_assert(!C.split_keys || piece_columns(C) % 8 == 0,
                "pieces of O are whole groups of eight columns");
  static_assert(!C.pack_heads || C.row_groups != 3,
                "a tile of packed heads has whole heads, or a part of one");

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

  // Whether any part of a CTA has some: nobody would wait for what another loads.
  static OCTAVO_DEVICE bool has_blocks(const Tile& t, u32 rank) {
    const Share last = share_of(t, rank * kKeyGroups + kKeyGroups - 1);
    return share_of(t, rank * kKeyGroups).key < last.key + last.blocks * C.block_n;
  }

  // --- load -------------------------------------------------------------------------------------

  static OCTAVO_DEVICE void load_k(const Sm90ForwardParams& p, const Tile& t, i32 key, u32 stage) {
    ptx::mbarrier_arrive_expect_tx(G::k_full(stage), G::S.k_stage);
    G::load_rows(p.k, G::k_tile(stage), G::k_full(stage), C.block_n, key,
                 p.by_heads_per_kv.quotient(t.head), t.batch);
  }
  static OCTAVO_DEVICE void load_v(const Sm90ForwardParams& p, const Tile& t, i32 key, u32 stage) {
    ptx::mbarrier_arrive_expect_tx(G::v_full(stage), G::S.k_stage);
    G::load_v(p, G::v_tile(stage), G::v_full(stage), t.at, t.sequence, key,
              p.by_heads_per_kv.quotient(t.head), t.batch);
  }
  // Everything the CTA's buffers hold at first, by one thread, in the order it is needed.
  static OCTAVO_DEVICE void load_first(const Sm90ForwardParams& p, const Tile& t, u32 rank) {
    ptx::mbarrier_arrive_expect_tx(G::q_full(0), C.row_groups * G::S.q_tile);
    OCTAVO_UNROLL
    for (int group = 0; group < C.row_groups; ++group) {
      const i32 row = t.first_row + group * kRows;
      G::load_rows(p.q, G::q_tile(group), G::q_full(0), kRows, G::query_of(p, row),
                   t.head + G::head_of(p, row), t.batch);
    }
    OCTAVO_UNROLL
    for (int stage = 0; stage < C.stages; ++stage) {
      OCTAVO_UNROLL
      for (u32 group = 0; group < kKeyGroups; ++group) {
        const Share share = share_of(t, rank * kKeyGroups + group);
        if (stage < share.blocks)
          load_k(p, t, share.key + stage * C.block_n, group * C.stages + stage);
      }
      OCTAVO_UNROLL
      for (u32 group = 0; group < kKeyGroups; ++group) {
        const Share share = share_of(t, rank * kKeyGroups + group);
        if (stage < share.blocks)
          load_v(p, t, share.key + stage * C.block_n, group * C.stages + stage);
      }
    }
  }

  static OCTAVO_DEVICE u32 key_group(const Lane& w) { return w.group / C.row_groups; }

  // The scales of a block's keys, by all threads of the part.
  static OCTAVO_DEVICE void load_scales(const Sm90ForwardParams& p, const Tile& t, i32 key,
                                        u32 stage, const Lane& w) {
    if constexpr (C.k_row_scales) {
      const u32 thread = (w.group % C.row_groups * 4 + w.warp) * 32 + w.lane;
      G::template load_key_scales<C.row_groups * kWarpgroup>(
          p, t.at, t.sequence, key, p.by_heads_per_kv.quotient(t.head), stage, thread);
      ptx::warp_sync();
      if (w.lane == 0) ptx::mbarrier_arrive(G::k_full(stage));
    }
  }

  // Buffers that this part fills itself.
  struct Feed {
    const Sm90ForwardParams& p;
    const Tile& t;
    KvRing k, v;
    i32 k_key, v_key, end;  // the next blocks to load, and where they end

    // Whether this thread loads into a buffer that nobody of the part reads any more.
    OCTAVO_DEVICE static bool may_load(const Lane& w) {
      ptx::named_barrier_sync(static_cast<int>(1 + key_group(w)), C.row_groups * kWarpgroup);
      return w.group % C.row_groups == 0 && w.warp == 0 && w.lane == 0;
    }
    OCTAVO_DEVICE void release_k(const Lane& w) {
      if (k_key < end) {
        if (may_load(w)) load_k(p, t, k_key, k.stage());
        load_scales(p, t, k_key, k.stage(), w);
        k_key += C.block_n;
      }
      k.advance();
    }
    OCTAVO_DEVICE void release_v(const Lane& w) {
      if (v_key < end) {
        if (may_load(w)) load_v(p, t, v_key, v.stage());
        v_key += C.block_n;
      }
      v.advance();
    }
  };

  // --- combine ----------------------------------------------------------------------------------

  static OCTAVO_DEVICE float sum_of(const State& state, u32 half) {
    if constexpr (C.ones) return state.o[G::kColumns + half * 2];
    float sum = state.rows.sum[half];
    sum += ptx::shuffle_xor(sum, 1);
    return sum + ptx::shuffle_xor(sum, 2);
  }

  // One part's columns of O with the maxima and sums they stand on.
  struct Piece {
    float o[kPiece];
    float origin[2];
    float sum[2];
  };

  // Where thread `thread` of a CTA finds 16 bytes of what part `from` hands it. Its own part's
  // place is that of the last.
  static OCTAVO_DEVICE u32 received(u32 from, u32 part, u32 i, u32 thread) {
    const u32 slot = from > part ? from - 1 : from;
    return ptx::shared_base() + G::S.receive +
           ((slot * (kHanded / 4) + i) * threads(C) + thread) * 16;
  }

  static OCTAVO_DEVICE void hand(u32 to, u32 cta, u32 bar, const float (&x)[4]) {
    const u32 words[4] = {ptx::bits_of(x[0]), ptx::bits_of(x[1]), ptx::bits_of(x[2]),
                          ptx::bits_of(x[3])};
    if constexpr (C.cluster > 1) {
      ptx::st_async_b128(ptx::map_to_cta(to, cta), words, ptx::map_to_cta(bar, cta));
    } else {
      OCTAVO_UNROLL
      for (u32 i = 0; i < 4; ++i) ptx::store_shared_b32(to + i * 4, words[i]);
    }
  }

  // To every other part, to the thread there that has the same rows.
  static OCTAVO_DEVICE void hand_out(const State& state, const Piece& mine, const Lane& w,
                                     u32 part) {
    const u32 row_group = w.group % C.row_groups;
    OCTAVO_UNROLL
    for (u32 to = 0; to < kParts; ++to) {
      if (to == part) continue;
      const u32 group = to % kKeyGroups * C.row_groups + row_group;
      const u32 thread = group * kWarpgroup + w.warp * 32 + w.lane;
      const u32 cta = to / kKeyGroups;
      OCTAVO_UNROLL
      for (u32 i = 0; i < kPiece / 4; ++i) {
        const float* const o = state.o + to * kPiece + i * 4;
        hand(received(part, to, i, thread), cta, G::pieces_full(group), {o[0], o[1], o[2], o[3]});
      }
      hand(received(part, to, kPiece / 4, thread), cta, G::pieces_full(group),
           {mine.origin[0], mine.origin[1], mine.sum[0], mine.sum[1]});
    }
  }

  static OCTAVO_DEVICE void load_received(float (&x)[4], u32 from, u32 part, u32 i) {
    u32 words[4];
    ptx::load_shared_b128(received(from, part, i, ptx::thread_index()), words);
    OCTAVO_UNROLL
    for (int e = 0; e < 4; ++e) x[e] = ptx::float_of_bits(words[e]);
  }

  // The weights of all parts' results, in the order of the parts; then what they add up to.
  static OCTAVO_DEVICE void gather(Piece& mine, u32 part) {
    float weight[kParts][2];
    float stats[kParts][4];
    OCTAVO_UNROLL
    for (u32 from = 0; from < kParts; ++from) {
      if (from == part) {
        stats[from][0] = mine.origin[0], stats[from][1] = mine.origin[1];
        stats[from][2] = mine.sum[0], stats[from][3] = mine.sum[1];
      } else {
        load_received(stats[from], from, part, kPiece / 4);
      }
    }
    OCTAVO_UNROLL
    for (int half = 0; half < 2; ++half) {
      // A part without a key for the row has no say, and may be at any origin.
      float origin = -kInfinity;
      OCTAVO_UNROLL
      for (u32 from = 0; from < kParts; ++from) {
        if (stats[from][2 + half] == 0.0f) stats[from][half] = -kInfinity;
        origin = ptx::max_f32(origin, stats[from][half]);
      }
      if (origin == -kInfinity) origin = 0;
      float sum = 0;
      OCTAVO_UNROLL
      for (u32 from = 0; from < kParts; ++from) {
        weight[from][half] = ptx::exp2_approx(stats[from][half] - origin);
        sum += weight[from][half] * stats[from][2 + half];
      }
      mine.origin[half] = origin;
      mine.sum[half] = sum;
    }
    OCTAVO_UNROLL
    for (u32 i = 0; i < kPiece / 4; ++i) {
      float total[4] = {0, 0, 0, 0};
      OCTAVO_UNROLL
      for (u32 from = 0; from < kParts; ++from) {
        float x[4] = {mine.o[i * 4], mine.o[i * 4 + 1], mine.o[i * 4 + 2], mine.o[i * 4 + 3]};
        if (from != part) load_received(x, from, part, i);
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) total[e] += weight[from][e / 2] * x[e];
      }
      OCTAVO_UNROLL
      for (int e = 0; e < 4; ++e) mine.o[i * 4 + e] = total[e];
    }
  }

  // Registers of a part's columns; which part is not known to the compiler: a choice, not an
  // address.
  static OCTAVO_DEVICE Piece piece_of(const State& state, u32 part) {
    Piece mine;
    OCTAVO_UNROLL
    for (int i = 0; i < kPiece; ++i) {
      float x = state.o[i];
      OCTAVO_UNROLL
      for (u32 c = 1; c < kParts; ++c) x = part == c ? state.o[c * kPiece + i] : x;
      mine.o[i] = x;
    }
    OCTAVO_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      mine.origin[half] = state.rows.origin[half];
      mine.sum[half] = sum_of(state, half);
    }
    return mine;
  }

  static OCTAVO_DEVICE Piece combine(const State& state, const Lane& w, u32 part) {
    Piece mine = piece_of(state, part);
    if constexpr (kParts > 1) {
      if constexpr (C.cluster > 1) ptx::cluster_wait();  // the others' barriers are ready
      hand_out(state, mine, w, part);
      if constexpr (C.cluster > 1)
        ptx::mbarrier_wait_cluster(G::pieces_full(w.group), 0);
      else
        ptx::cta_sync();
      gather(mine, part);
    }
    return mine;
  }

  // A piece of O, from column `first` on, and LSE.
  static OCTAVO_DEVICE void store(const Piece& mine, const Sm90ForwardParams& p, const Place& w,
                                  i32 first) {
    constexpr int kBytes = element_bytes(C.out);
    OCTAVO_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      const i32 row = w.query(p, half);
      const i32 head = G::head_of(p, w.row(half));
      if (row >= w.at.len_q || (C.pack_heads && head >= p.heads_per_kv)) continue;
      Place at = w;
      at.head += head;
      const float sum = mine.sum[half];
      const float inverse = sum == 0.0f ? 0.0f : ptx::reciprocal_approx(sum);
      u8* const out = Epilogue<G>::row_of(p, at, row);
      OCTAVO_UNROLL
      for (int i = 0; i < kPiece / 4; ++i) {
        const i32 column = first + i * 8 + static_cast<i32>(w.lane % 4 * 2);
        if (column < p.head_dim)
          Epilogue<G>::store_pair(out + column * kBytes, mine.o[i * 4 + half * 2] * inverse,
                                  mine.o[i * 4 + half * 2 + 1] * inverse);
      }
      if (first == 0) Epilogue<G>::store_lse(mine.origin[half], sum, p, at, row);
    }
  }

  // --- math -------------------------------------------------------------------------------------

  static OCTAVO_DEVICE void math(const Sm90ForwardParams& p, const Tile& t, u32 rank) {
    Place w;
    w.group = ptx::warp_index() / 4;
    w.warp = ptx::warp_index() % 4;
    w.lane = ptx::lane_index();
    const u32 row_group = w.group % C.row_groups;
    const u32 part = rank * kKeyGroups + key_group(w);
    w.at = t.at;
    w.sequence = t.sequence;
    w.batch = t.batch;
    w.head = t.head;
    w.first_row = t.first_row + static_cast<i32>(row_group) * kRows;
    State state;
    const Share share = share_of(t, part);
    const i32 first = static_cast<i32>(part) * kPiece * 2;
    // Long before they are needed: at the end nothing would hide that they are on their way.
    float v_scales[kPiece / 2];
    if constexpr (is_8bit(C)) Epilogue<G>::load_v_scales(v_scales, p, w, first);
    if (share.blocks > 0) {
      Mainloop<G>::begin_o(state);
      Mainloop<G>::begin_rows(state.rows, p, w);
      const BlockRange range = block_range(p, w.at, G::query_of(p, w.first_row), kRows, C.block_n);
      const KvRing ring{key_group(w) * C.stages};
      OCTAVO_UNROLL
      for (int stage = 0; stage < C.stages; ++stage)
        if (stage < share.blocks)
          load_scales(p, t, share.key + stage * C.block_n, ring.first + stage, w);
      const i32 next = share.key + C.stages * C.block_n;
      Feed feed{p, t, ring, ring, next, next, share.key + share.blocks * C.block_n};
      ptx::mbarrier_wait(G::q_full(0), 0);
      // Not earlier: the next grid's CTAs would crowd on the SMs where this one's have not come.
      if constexpr (C.early_start) ptx::launch_dependent_grids();
      if constexpr (C.overlap)
        Mainloop<G>::run(state, p, w, range, share.key, share.blocks, row_group, feed);
      else
        Mainloop<G>::run_in_turn(state, p, w, range, share.key, share.blocks, row_group, feed);
    } else {
      Mainloop<G>::init(state);
    }
    Piece piece = combine(state, w, part);
    if constexpr (is_8bit(C)) Epilogue<G>::scale_values(piece.o, v_scales);
    store(piece, p, w, first);
  }

  // --- entry ------------------------------------------------------------------------------------

  static OCTAVO_DEVICE void init_barriers() {
    ptx::mbarrier_init(G::q_full(0), 1);
    OCTAVO_UNROLL
    for (u32 stage = 0; stage < kv_buffers(C); ++stage) {
      ptx::mbarrier_init(G::k_full(stage), C.k_row_scales ? 1 + 4 * C.row_groups : 1);
      ptx::mbarrier_init(G::v_full(stage), 1);
    }
    if constexpr (C.cluster > 1) {
      OCTAVO_UNROLL
      for (u32 group = 0; group < C.warpgroups; ++group) {
        ptx::mbarrier_init(G::pieces_full(group), 1);
        ptx::mbarrier_arrive_expect_tx(G::pieces_full(group),
                                       (kParts - 1) * kHanded * 4 * kWarpgroup);
      }
    }
    ptx::fence_mbarrier_init();
  }

  // Every tile has rows, and its length is known: batches are not packed here.
  static OCTAVO_DEVICE Tile tile_of(const Sm90ForwardParams& p, i32 index) {
    const i32 head = p.by_row_tiles.quotient(index);
    Tile t;
    t.first_row = ((head + 1) * p.row_tiles - 1 - index) * block_m(C);  // the longest first
    t.sequence = t.batch = p.by_heads_q.quotient(head);
    t.head = head - t.sequence * p.heads_q;
    if constexpr (C.pack_heads) t.head *= p.heads_per_kv;  // the first of them
    t.at = {0, p.len_q, 0, p.len_kv};
    const BlockRange range =
        block_range(p, t.at, G::query_of(p, t.first_row), block_m(C), C.block_n);
    t.begin = range.begin;
    t.blocks = div_up(max_of(range.end - range.begin, 0), C.block_n);
    return t;
  }

  // Thread 0 has the longest way before the first keys arrive: it starts with what needs no
  // parameter, whose first read is slow, and the other warps write the ones.
  static OCTAVO_DEVICE void entry(const Sm90ForwardParams& p) {
    const u32 thread = ptx::thread_index();
    if (thread == 0) init_barriers();
    const u32 rank = C.cluster > 1 ? ptx::cluster_cta_rank() : 0;
    const Tile t = tile_of(p, ptx::block_index_x() / C.cluster);
    // Who stores waits for this thread before.
    if (C.early_start && thread == 0) ptx::wait_for_earlier_grids();
    if (thread == 0 && has_blocks(t, rank)) load_first(p, t, rank);
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
