// SPDX-License-Identifier: Apache-2.0
// The schedule of the decode kernel: how it divides the keys of all sequences among the CTAs.
//
// A work tile is one sequence, one KV head and one tile of query rows; its keys are divided into KV
// tiles of tile_keys. The KV tiles of all work tiles are numbered consecutively: sequence by
// sequence, work tile by work tile. Each CTA computes consecutive KV tiles. Whatever the lengths of
// the sequences, the numbers of KV tiles of any two CTAs differ by at most one. A work tile has at
// least one KV tile, so that the outputs of an empty sequence are written too.
//
// The lengths are read on the device: a captured graph serves sequences that grow.
#pragma once

#include "config/decode.h"
#include "device/core/block_range.cuh"
#include "device/decode/params.cuh"
#include "device/ptx/thread.cuh"

namespace octavo::decode {

// The keys of one sequence. All work tiles of a sequence visit the same KV tiles.
struct SequenceKeys {
  SequenceSpan span;
  BlockRange range;  // of all its queries
  i32 kv_tiles = 0;  // of each work tile
};

// A grid that overlaps an earlier one (kOverlaps) may have started before that one has written the
// lengths.
template <int kTileKeys, bool kOverlaps>
OCTAVO_DEVICE SequenceKeys sequence_keys(const Params& p, i32 sequence) {
  SequenceKeys keys;
  const PaddingParams& padding = p.modifiers.padding;
  clamp_used_rows<kOverlaps>(padding.leftpad_q, padding.seqlens_q, sequence, p.seqlen_q,
                             keys.span.q_begin, keys.span.seqlen_q);
  clamp_used_rows<kOverlaps>(padding.leftpad_kv, padding.seqlens_kv, sequence, p.seqlen_kv,
                             keys.span.kv_begin, keys.span.seqlen_kv);
  keys.range = block_range(p, keys.span, 0, max_of(keys.span.seqlen_q, 1), kTileKeys);
  keys.kv_tiles = max_of(div_up(keys.range.end - keys.range.begin, kTileKeys), 1);
  return keys;
}

OCTAVO_DEVICE bool has_lengths(const Params& p) {
  const PaddingParams& padding = p.modifiers.padding;
  return padding.seqlens_q != nullptr || padding.seqlens_kv != nullptr ||
         padding.leftpad_q != nullptr || padding.leftpad_kv != nullptr;
}

// A KV tile: its work tile, and its number in it.
struct Cursor {
  SequenceKeys keys;  // of the sequence
  i32 sequence = 0;
  i32 kv_head = 0, row_tile = 0;
  i32 kv_tile = 0;
};

template <int kTileKeys, bool kOverlaps>
struct Schedule {
  const Params& p;
  i32 work_tiles;  // of each sequence
  i32 total;       // KV tiles of all sequences
  i32 per_cta;     // KV tiles of a CTA; the first `longer` CTAs have one more
  i32 longer;
  i32 tiles_before;          // KV tiles per work tile of the sequences before this lane's
  i32 lane_sequences;        // how many sequences a lane counts; 0 if all are equally long
  SequenceKeys keys_of_all;  // then

  // The whole warp makes a schedule. Lane l counts the KV tiles of sequences [l n, (l + 1) n).
  OCTAVO_DEVICE explicit Schedule(const Params& params)
      : p(params),
        work_tiles(params.heads_kv * params.row_tiles),
        tiles_before(0),
        lane_sequences(0) {
    total = work_tiles * count_tiles();
    per_cta = p.by_ctas.quotient(total);
    longer = total - per_cta * p.ctas;
  }

  // The number of a CTA's first KV tile; `total` for the index after the last CTA. If there are
  // fewer KV tiles than CTAs, the last CTAs have none.
  OCTAVO_DEVICE i32 first_tile(i32 cta) const { return cta * per_cta + min_of(cta, longer); }
  // The CTA that computes a KV tile.
  OCTAVO_DEVICE i32 cta_of(i32 tile) const {
    const i32 in_longer = longer * (per_cta + 1);
    return tile < in_longer ? tile / (per_cta + 1) : longer + (tile - in_longer) / per_cta;
  }

  // Finds the KV tile with number `index`. The whole warp calls it.
  OCTAVO_DEVICE Cursor find(i32 index) const {
    Cursor at;
    if (lane_sequences != 0) {
      i32 before;  // KV tiles of the sequences before
      find_sequence(p.by_work_tiles.quotient(index), at.sequence, before);
      index -= before * work_tiles;
    }
    at.keys =
        lane_sequences != 0 ? sequence_keys<kTileKeys, kOverlaps>(p, at.sequence) : keys_of_all;
    i32 work_tile = index / at.keys.kv_tiles;
    at.kv_tile = index - work_tile * at.keys.kv_tiles;
    if (lane_sequences == 0) {
      at.sequence = p.by_work_tiles.quotient(work_tile);
      work_tile -= at.sequence * work_tiles;
    }
    at.kv_head = p.by_row_tiles.quotient(work_tile);
    at.row_tile = work_tile - at.kv_head * p.row_tiles;
    return at;
  }

  // The first KV tile of a work tile, and its number. The whole warp calls it.
  OCTAVO_DEVICE Cursor begin_of(i32 work_tile, i32& number) const {
    Cursor at;
    at.sequence = p.by_work_tiles.quotient(work_tile);
    const i32 in_sequence = work_tile - at.sequence * work_tiles;
    at.kv_head = p.by_row_tiles.quotient(in_sequence);
    at.row_tile = in_sequence - at.kv_head * p.row_tiles;
    if (lane_sequences == 0) {
      at.keys = keys_of_all;
      number = work_tile * at.keys.kv_tiles;
    } else {
      at.keys = sequence_keys<kTileKeys, kOverlaps>(p, at.sequence);
      number = tiles_before_sequence(at.sequence) * work_tiles + in_sequence * at.keys.kv_tiles;
    }
    return at;
  }

  OCTAVO_DEVICE void advance(Cursor& at) const {
    if (++at.kv_tile < at.keys.kv_tiles) return;
    at.kv_tile = 0;
    if (++at.row_tile < p.row_tiles) return;
    at.row_tile = 0;
    if (++at.kv_head < p.heads_kv) return;
    at.kv_head = 0;
    ++at.sequence;
    if (lane_sequences != 0 && at.sequence < p.batch)
      at.keys = sequence_keys<kTileKeys, kOverlaps>(p, at.sequence);
  }

 private:
  // Counts the KV tiles of all sequences, with one work tile for each sequence.
  OCTAVO_DEVICE i32 count_tiles() {
    if (p.batch == 1 || !has_lengths(p)) {
      keys_of_all = sequence_keys<kTileKeys, kOverlaps>(p, 0);
      return p.batch * keys_of_all.kv_tiles;
    }
    lane_sequences = div_up(p.batch, 32);
    i32 sum = 0;
    OCTAVO_ROLLED
    for (i32 i = first_of_lane(); i < end_of_lane(); ++i)
      sum += sequence_keys<kTileKeys, kOverlaps>(p, i).kv_tiles;
    // A prefix sum by pairs: each round doubles the lanes whose sum is known.
    OCTAVO_UNROLL
    for (int bit = 1; bit < 32; bit *= 2) {
      const i32 others = ptx::shuffle_xor(sum, bit);
      if (ptx::lane_index() & static_cast<u32>(bit)) tiles_before += others;
      sum += others;
    }
    return sum;
  }

  OCTAVO_DEVICE i32 first_of_lane() const {
    return static_cast<i32>(ptx::lane_index()) * lane_sequences;
  }
  OCTAVO_DEVICE i32 end_of_lane() const {
    return min_of(first_of_lane() + lane_sequences, p.batch);
  }

  // The KV tiles of the sequences before one, with one work tile for each. The lane that counts the
  // sequence knows it.
  OCTAVO_DEVICE i32 tiles_before_sequence(i32 sequence) const {
    i32 before = tiles_before;
    OCTAVO_ROLLED
    for (i32 i = first_of_lane(); i < min_of(end_of_lane(), sequence); ++i)
      before += sequence_keys<kTileKeys, kOverlaps>(p, i).kv_tiles;
    return ptx::shuffle_from(before, static_cast<u32>(sequence / lane_sequences));
  }

  // Finds the sequence that holds a KV tile, with one work tile for each sequence, and counts the
  // KV tiles before that sequence. One lane finds it; the sums over the warp broadcast its result.
  OCTAVO_DEVICE void find_sequence(i32 tile, i32& sequence, i32& before) const {
    i32 at = tiles_before;
    sequence = before = 0;
    OCTAVO_ROLLED
    for (i32 i = first_of_lane(); i < end_of_lane(); ++i) {
      const i32 tiles = sequence_keys<kTileKeys, kOverlaps>(p, i).kv_tiles;
      if (tile >= at && tile < at + tiles) {
        sequence = i;
        before = at;
      }
      at += tiles;
    }
    OCTAVO_UNROLL
    for (int bit = 1; bit < 32; bit *= 2) {
      sequence += ptx::shuffle_xor(sequence, bit);
      before += ptx::shuffle_xor(before, bit);
    }
  }
};

// The query rows of a work tile: row r is query head r % heads_per_kv of the KV head's group, and
// token r / heads_per_kv (pack_gqa). Tokens are rows of the tensor, so some may be padding.
struct WorkTile {
  i32 sequence = 0, kv_head = 0;
  i32 first_row = 0;
  i32 rows = 0;  // that exist

  OCTAVO_DEVICE i32 token(const Params& p, i32 row) const {
    return p.by_heads_per_kv.quotient(first_row + row);
  }
  OCTAVO_DEVICE i32 head(const Params& p, i32 row) const {
    return (kv_head - token(p, row)) * p.heads_per_kv + first_row + row;
  }
};

template <int kBlockM>
OCTAVO_DEVICE WorkTile work_tile_of(const Params& p, const Cursor& at) {
  WorkTile work;
  work.sequence = at.sequence;
  work.kv_head = at.kv_head;
  work.first_row = at.row_tile * kBlockM;
  work.rows = min_of(p.seqlen_q * p.heads_per_kv - work.first_row, kBlockM);
  return work;
}

// Whether a token of the tensor is padding; its output is 0.
OCTAVO_DEVICE bool is_padding(const SequenceSpan& span, i32 token) {
  return ptx::mask_term(token < span.q_begin, false) ||
         ptx::mask_term(token >= span.q_begin + span.seqlen_q, false);
}

// The keys that a token of the tensor sees.
OCTAVO_DEVICE KeyLimits limits_of(const Params& p, const SequenceSpan& span, i32 token) {
  if (is_padding(span, token)) return {};
  return key_limits(p, span, token - span.q_begin);
}

}  // namespace octavo::decode
