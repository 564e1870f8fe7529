// SPDX-License-Identifier: Apache-2.0
// The work of one CTA of the backward kernel, and the order in which blocks of keys add to dQ.
//
// A CTA, or a pair of CTAs, has block_n keys of one KV head. For every query head that shares them
// it visits the blocks of queries that see any of these keys. dQ is the only sum to which several
// CTAs contribute. FP32 sums depend on their order, so the order is fixed for each block of
// queries: a CTA adds its part when it is its turn, and the result has the same bits in every run.
//
// The order is chosen so that CTAs seldom wait. Heads come in groups that fill the SMs once:
//
//   mask    groups   tiles start        blocks of queries    turn of tile n at block m
//   any     even     last keys first    ascending            last tile first
//   any     odd      first keys first   descending           first tile first
//   none    all      first keys first   from a different     the tile that began at m first,
//                                       block each, cyclic   then the one before it, ...
//   none    all      first keys first   ascending            first tile first
//
// If dQ has two partial sums, a tile waits only for the tiles that add to the same one. Under a
// mask these are every second tile, otherwise half of the head's tiles (`circle`).
//
// Under a causal mask the tiles of an even group start together, each at its diagonal, so at any
// time they are at different blocks. Short tiles end first, and their CTAs get the long tiles of
// the odd group that follows. These start one after another and descend from the last block, so
// they too are at different blocks, and they end together. In all orders but the cyclic one, a tile
// waits only for tiles that start before it. In the cyclic order all tiles of a circle must be
// resident; if it has more than max_cyclic_tiles tiles, the last line of the table is used. So no
// tile waits forever, provided that CTAs are dispatched in the order of their index.
#pragma once

#include "config/sm90_backward.h"
#include "device/core/block_range.cuh"
#include "device/ptx/cluster.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/thread.cuh"
#include "device/sm90/backward/params.cuh"

namespace octavo::sm90::backward {

// The modifier parameters. Only a kernel with modifiers or padding has them.
OCTAVO_DEVICE const ModifierParams& modifiers(const Sm90BackwardParams& p) {
  return static_cast<const ModifiedSm90BackwardParams&>(p).modifiers;
}

// The range [begin, end) of the head's key tiles that contribute to a block of dQ.
struct TileRange {
  i32 begin, end;
};

template <class Config>
struct Work {
  static constexpr Sm90BackwardConfig C = Config::value;

  SequenceSpan span;
  i32 sequence, head_kv;
  i32 n_tile;            // of the head
  i32 m_begin, m_count;  // blocks of queries that it visits
  i32 order;             // Order
  i32 circle;            // without a mask, how many tiles add to the same partial sum of dQ

  enum Order : i32 { kAscending, kDescending, kMaskedAscending, kCyclic };

  static OCTAVO_DEVICE SequenceSpan span_of(const Sm90BackwardParams& p, i32 sequence) {
    return C.modifiers.padded ? padded_span(p, modifiers(p).padding, sequence)
                              : sequence_span(p, sequence);
  }

  static OCTAVO_DEVICE bool has_mask(const Sm90BackwardParams& p) {
    return p.window_left < kNoLimit || p.window_right < kNoLimit;
  }
  // All lanes of a warp call this. The CTAs of a pair have the same work.
  static OCTAVO_DEVICE Work of_block(const Sm90BackwardParams& p, i32 index) {
    Work w;
    const bool masked = has_mask(p);
    const i32 heads = masked ? p.heads_per_group : 1;
    const i32 group = index / (heads * p.n_tiles), in_group = index % (heads * p.n_tiles);
    const i32 of_group = min_of(heads, p.heads_kv * p.sequences - group * heads);
    const i32 head = group * heads + in_group % of_group, place = in_group / of_group;
    w.sequence = head / p.heads_kv;
    w.head_kv = head % p.heads_kv;
    w.span = span_of(p, w.sequence);
    w.circle = max_of(div_up(w.n_tiles(), p.dq_sums), 1);
    w.order = masked                           ? group % 2 != 0 ? kDescending : kMaskedAscending
              : w.circle <= p.max_cyclic_tiles ? kCyclic
                                               : kAscending;
    w.n_tile = w.order == kMaskedAscending ? w.n_tiles() - 1 - place : place;
    w.find_queries(p);
    return w;
  }
  // The position of the tile among the head's tiles in the order of the grid. Tiles beyond the
  // sequence come after its own.
  OCTAVO_DEVICE i32 place() const {
    return order == kMaskedAscending ? n_tiles() - 1 - n_tile : n_tile;
  }
  // A CTA of a varlen or padded batch may have no tile: sequences differ in length.
  OCTAVO_DEVICE bool has_keys() const { return n_tile >= 0 && n() < span.seqlen_kv; }
  OCTAVO_DEVICE i32 n() const { return n_tile * C.block_n; }  // the tile's first key
  // The first key of CTA `rank` of the tile, which may have none.
  OCTAVO_DEVICE i32 n_of(u32 rank) const { return n() + static_cast<i32>(rank) * cta_keys(C); }
  // The first key of this CTA.
  OCTAVO_DEVICE i32 cta_n() const { return is_pair(C) ? n_of(ptx::cluster_cta_rank()) : n(); }
  OCTAVO_DEVICE i32 n_tiles() const { return div_up(span.seqlen_kv, C.block_n); }
  OCTAVO_DEVICE i32 m_blocks() const { return div_up(span.seqlen_q, C.block_m); }
  OCTAVO_DEVICE i32 batch(const Sm90BackwardParams& p) const {
    return p.cu_seqlens_q == nullptr ? sequence : 0;
  }

  // Passes the work to the consumers through shared memory, as they have no registers to keep it.
  OCTAVO_DEVICE void publish(u32 slot) const {
    const i32 fields[] = {span.q_begin, span.seqlen_q, span.kv_begin, span.seqlen_kv,
                          sequence,     head_kv,       n_tile,        m_begin,
                          m_count,      order,         circle};
    OCTAVO_UNROLL
    for (u32 i = 0; i < 11; ++i) ptx::store_shared_b32(slot + i * 4, static_cast<u32>(fields[i]));
  }
  static OCTAVO_DEVICE i32 field(u32 slot, u32 index) {
    return __builtin_bit_cast(i32, ptx::load_shared_f32(slot + index * 4));
  }
  static OCTAVO_DEVICE Work read(u32 slot) {
    return {{field(slot, 0), field(slot, 1), field(slot, 2), field(slot, 3)},
            field(slot, 4),
            field(slot, 5),
            field(slot, 6),
            field(slot, 7),
            field(slot, 8),
            field(slot, 9),
            field(slot, 10)};
  }
  // Reads only what a mask needs.
  static OCTAVO_DEVICE Work read_lengths(u32 slot) {
    Work w{};
    w.span.seqlen_q = field(slot, 1);
    w.span.seqlen_kv = field(slot, 3);
    w.n_tile = field(slot, 6);
    return w;
  }

  // Finds the blocks of queries that see some key of the tile.
  OCTAVO_DEVICE void find_queries(const Sm90BackwardParams& p) {
    const QueryLimits first = query_limits(p, span, n());
    const QueryLimits last = query_limits(p, span, min_of(n() + C.block_n, span.seqlen_kv) - 1);
    m_begin = first.begin / C.block_m;
    m_count = last.end > first.begin ? div_up(last.end, C.block_m) - m_begin : 0;
  }

  // The i-th block of queries that the tile visits. Cyclic order is used only without a mask, where
  // m_begin is 0.
  OCTAVO_DEVICE i32 m_block(i32 i) const {
    if (order == kDescending) return m_begin + m_count - 1 - i;
    const i32 m = order == kCyclic ? i + n_tile % circle * m_count / circle : m_begin + i;
    return m < m_begin + m_count ? m : m - m_count;
  }

  // The tiles that visit block m of the queries.
  static OCTAVO_DEVICE TileRange tiles_of(const Sm90BackwardParams& p, const SequenceSpan& span,
                                          i32 m) {
    const KeyLimits first = key_limits(p, span, m * C.block_m);
    const KeyLimits last = key_limits(p, span, min_of((m + 1) * C.block_m, span.seqlen_q) - 1);
    if (first.begin >= last.end) return {0, 0};
    return {first.begin / C.block_n, div_up(last.end, C.block_n)};
  }
  // The partial sum of dQ that the tile adds to.
  OCTAVO_DEVICE i32 dq_sum(const Sm90BackwardParams& p) const {
    return order == kCyclic || order == kAscending ? n_tile / circle : n_tile % p.dq_sums;
  }
  // How many tiles add to block m of the same partial sum before this one.
  OCTAVO_DEVICE u32 turn(const Sm90BackwardParams& p, i32 m) const {
    const i32 in_circle = n_tile % circle;
    if (order == kAscending) return static_cast<u32>(in_circle);
    if (order == kCyclic) {
      const i32 tiles = min_of(circle, n_tiles() - (n_tile - in_circle));
      const i32 started = min_of(div_up((m + 1) * circle, m_blocks()), tiles);
      const i32 behind = started - 1 - in_circle;
      return static_cast<u32>(behind < 0 ? behind + tiles : behind);
    }
    const TileRange tiles = tiles_of(p, span, m);
    const i32 before = order == kMaskedAscending ? tiles.end - 1 - n_tile : n_tile - tiles.begin;
    return static_cast<u32>(before / p.dq_sums);
  }
  // Whether some query of block m does not see some key of this CTA.
  OCTAVO_DEVICE bool needs_mask(const Sm90BackwardParams& p, i32 m) const {
    return block_range(p, span, m * C.block_m, C.block_m, cta_keys(C))
        .needs_mask(cta_n(), cta_keys(C));
  }
};

// The number of the first tile of dQ of a sequence. In a varlen batch a tile may stay unused
// between two sequences, and no two sequences share one.
template <int kBlockM>
OCTAVO_DEVICE i32 first_dq_tile(const Sm90BackwardParams& p, const SequenceSpan& span,
                                i32 sequence) {
  if (p.cu_seqlens_q == nullptr) return sequence * div_up(p.seqlen_q, kBlockM);
  return span.q_begin / kBlockM + sequence;
}

// Zeroes the padding among rows [first, first + rows) of a 16-bit gradient. Padding is every row of
// the tensor outside [begin, begin + length).
template <int kThreads>
OCTAVO_DEVICE void clear_padding(void* to, const Strides& s, i64 of_head, i32 first, i32 rows,
                                 i32 begin, i32 length, i32 head_dim) {
  constexpr u32 kZeros[4] = {};
  const i32 chunks = head_dim / 8;
  OCTAVO_ROLLED
  for (i32 i = static_cast<i32>(ptx::thread_index()); i < rows * chunks; i += kThreads) {
    const i32 row = first + i / chunks;
    if (ptx::mask_term(row < begin, false) || ptx::mask_term(row >= begin + length, false))
      ptx::store_global_b128(static_cast<u8*>(to) + 2 * (of_head + row * s.row + i % chunks * 8),
                             kZeros);
  }
}

}  // namespace octavo::sm90::backward
