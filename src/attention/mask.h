// SPDX-License-Identifier: Apache-2.0
// The keys that causal masks, windows and lengths let a query row see: one interval, two limits for
// each row. Other modifiers of the scores are in score_modifiers.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "octavo/octavo.hpp"

namespace octavo {

// Keys [begin, end); empty when begin >= end.
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

inline bool is_masked(const Options& options) {
  return options.causal != Causal::none || options.window_left >= 0 || options.window_right >= 0;
}

// The diagonal key of row i is i + diagonal_offset. The offset is 0 with top_left; with
// bottom_right, and for windows without a causal mask, it is seqlen_kv - seqlen_q.
inline std::int64_t diagonal_offset(Causal causal, std::int64_t seqlen_q, std::int64_t seqlen_kv) {
  return causal == Causal::top_left ? 0 : seqlen_kv - seqlen_q;
}

inline KeyRange visible_keys(const Options& options, std::int64_t row, std::int64_t seqlen_q,
                             std::int64_t seqlen_kv) {
  const std::int64_t diagonal = row + diagonal_offset(options.causal, seqlen_q, seqlen_kv);
  KeyRange keys{0, seqlen_kv};
  if (options.causal != Causal::none) keys.end = std::min(keys.end, diagonal + 1);
  // Compare distances, not sums: a window may be as large as int64 allows.
  if (options.window_left >= 0 && diagonal > options.window_left)
    keys.begin = diagonal - options.window_left;
  if (options.window_right >= 0 && options.window_right < seqlen_kv - diagonal)
    keys.end = std::min(keys.end, diagonal + options.window_right + 1);
  keys.end = std::max(keys.end, keys.begin);
  return keys;
}

// Whether a problem has any modifier: scores are not just scale * q k, a sink adds a term to the
// softmax, or a mask tensor, block mask or draft tree hides keys.
inline bool changes_scores(const Problem& p) {
  return p.options.softcap != 0 || p.bias || p.mask || p.alibi || p.sinks || p.block_mask != 0 ||
         p.draft_tree;
}
inline bool changes_scores(const Arguments& a) {
  return a.bias.data != nullptr || a.mask.data != nullptr || a.alibi_slopes != nullptr ||
         a.sinks != nullptr || a.block_mask.block_size != 0 || a.draft_tree != nullptr;
}

}  // namespace octavo
