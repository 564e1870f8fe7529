// SPDX-License-Identifier: Apache-2.0
// The keys that a query row sees, and the blocks of keys that a tile of rows must visit.
//
// Every mask of the API is one interval of keys per row, and both ends grow with the row. A tile
// therefore visits the blocks from the first row's first key to the last row's last key, and only a
// block that is not inside every row's interval needs a mask.
#pragma once

#include "config/portable.h"
#include "device/core/params.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/target.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/thread.cuh"

namespace octavo {

// One sequence of the batch: first token and length of its queries and of its keys.
struct SequenceSpan {
  i32 q_begin = 0, seqlen_q = 0;
  i32 kv_begin = 0, seqlen_kv = 0;
};

// Entry `index` of cu_seqlens, inside the tensor. A grid that overlaps an earlier one (kOverlaps)
// may have started before that one has written cu_seqlens.
template <bool kOverlaps>
OCTAVO_DEVICE i32 clamped_token(const i32* cu, i32 index, i32 tokens) {
  const i32 token =
      kOverlaps ? ptx::load_coherent_i32(cu + index) : ptx::load_global_i32(cu + index);
  if (ptx::mask_term(token < 0, false)) return 0;
  return ptx::mask_term(token > tokens, false) ? tokens : token;
}

// Contents of cu_seqlens are clamped, never trusted. A sequence that begins before an earlier entry
// is empty, so that no two sequences share a token; none is longer than the maximum. With kByLanes
// the lanes of a warp search together; otherwise each thread scans alone, with fewer registers.
template <bool kByLanes = true, bool kOverlaps = true>
OCTAVO_DEVICE void clamp_span(const i32* cu, i32 sequence, i32 tokens, i32 longest, i32& begin,
                              i32& length) {
  begin = clamped_token<kOverlaps>(cu, sequence, tokens);
  length = max_of(clamped_token<kOverlaps>(cu, sequence + 1, tokens) - begin, 0);
  if (ptx::mask_term(length > longest, false)) length = longest;
  i32 earlier = kByLanes ? static_cast<i32>(ptx::lane_index()) : 0;
  OCTAVO_UNROLL_BY(1)
  while (earlier < sequence && clamped_token<kOverlaps>(cu, earlier, tokens) <= begin)
    earlier += kByLanes ? 32 : 1;
  const bool is_behind = kByLanes ? ptx::warp_any(earlier < sequence) : earlier < sequence;
  if (ptx::mask_term(is_behind, false)) length = 0;
}

template <bool kByLanes = true, bool kOverlaps = true, class Params>
OCTAVO_DEVICE SequenceSpan sequence_span(const Params& p, i32 sequence) {
  if (p.cu_seqlens_q == nullptr) return {0, p.seqlen_q, 0, p.seqlen_kv};
  SequenceSpan span;
  clamp_span<kByLanes, kOverlaps>(p.cu_seqlens_q, sequence, p.tokens_q, p.seqlen_q, span.q_begin,
                                  span.seqlen_q);
  clamp_span<kByLanes, kOverlaps>(p.cu_seqlens_kv, sequence, p.tokens_kv, p.seqlen_kv,
                                  span.kv_begin, span.seqlen_kv);
  return span;
}

// The rows [begin, begin + length) of a batch entry that are not padding, clamped to its `rows`
// rows.
template <bool kOverlaps>
OCTAVO_DEVICE void clamp_used_rows(const i32* leftpad, const i32* seqlens, i32 sequence, i32 rows,
                                   i32& begin, i32& length) {
  begin = leftpad == nullptr ? 0 : clamped_token<kOverlaps>(leftpad, sequence, rows);
  length = rows - begin;
  if (seqlens != nullptr) length = clamped_token<kOverlaps>(seqlens, sequence, length);
}

// The same in a batch that may be padded.
template <bool kByLanes = true, bool kOverlaps = true, class Params>
OCTAVO_DEVICE SequenceSpan padded_span(const Params& p, const PaddingParams& padding,
                                       i32 sequence) {
  if (p.cu_seqlens_q != nullptr) return sequence_span<kByLanes, kOverlaps>(p, sequence);
  SequenceSpan span;
  clamp_used_rows<kOverlaps>(padding.leftpad_q, padding.seqlens_q, sequence, p.seqlen_q,
                             span.q_begin, span.seqlen_q);
  clamp_used_rows<kOverlaps>(padding.leftpad_kv, padding.seqlens_kv, sequence, p.seqlen_kv,
                             span.kv_begin, span.seqlen_kv);
  return span;
}

struct KeyLimits {
  i32 begin = 0;  // first key seen
  i32 end = 0;    // one past the last
};

template <class Params>
OCTAVO_DEVICE KeyLimits key_limits(const Params& p, const SequenceSpan& span, i32 row) {
  const i32 diagonal = row + (p.bottom_right ? span.seqlen_kv - span.seqlen_q : 0);
  KeyLimits keys{0, span.seqlen_kv};
  if (ptx::mask_term(diagonal > p.window_left, false)) keys.begin = diagonal - p.window_left;
  if (ptx::mask_term(p.window_right < span.seqlen_kv - diagonal, false))
    keys.end = diagonal + p.window_right + 1;
  keys.end = max_of(min_of(keys.end, span.seqlen_kv), 0);
  return keys;
}

// The queries that see a key: [begin, end), empty if begin >= end.
struct QueryLimits {
  i32 begin = 0;
  i32 end = 0;
};

template <class Params>
OCTAVO_DEVICE QueryLimits query_limits(const Params& p, const SequenceSpan& span, i32 key) {
  // The query that has this key on its diagonal.
  const i32 diagonal = key - (p.bottom_right ? span.seqlen_kv - span.seqlen_q : 0);
  QueryLimits queries{0, span.seqlen_q};
  if (ptx::mask_term(diagonal > p.window_right, false)) queries.begin = diagonal - p.window_right;
  if (ptx::mask_term(p.window_left < span.seqlen_q - diagonal, false))
    queries.end = max_of(diagonal + p.window_left + 1, 0);
  if (ptx::mask_term(key >= span.seqlen_kv, false)) queries.end = 0;
  return queries;
}

// Whether some row of a tile does not see all of the `keys` keys from n on: all rows see
// [full_begin, full_end).
OCTAVO_DEVICE bool needs_mask(i32 n, i32 keys, i32 full_begin, i32 full_end) {
  return ptx::mask_term(n < full_begin, false) || ptx::mask_term(n + keys > full_end, false);
}

// A tile of rows visits keys [begin, end); all of its rows see [full_begin, full_end).
struct BlockRange {
  i32 begin = 0, end = 0;
  i32 full_begin = 0, full_end = 0;

  OCTAVO_DEVICE bool needs_mask(i32 n, i32 keys) const {
    return octavo::needs_mask(n, keys, full_begin, full_end);
  }
};

template <class Params>
OCTAVO_DEVICE BlockRange block_range(const Params& p, const SequenceSpan& span, i32 first_row,
                                     i32 rows, i32 block) {
  const KeyLimits first = key_limits(p, span, first_row);
  const KeyLimits last = key_limits(p, span, min_of(first_row + rows, span.seqlen_q) - 1);
  return {first.begin / block * block, last.end, last.begin, first.end};
}

}  // namespace octavo
