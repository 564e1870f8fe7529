// SPDX-License-Identifier: Apache-2.0
// The sequences of a call. In a varlen batch they are spans of one tensor. Otherwise each batch
// entry is one sequence, which may be padded, or have its keys in a paged cache.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/pages.h"
#include "octavo/octavo.hpp"

namespace octavo {

// The rows of one sequence, for queries and for keys.
struct Sequence {
  std::int64_t batch = 0;  // index into the tensors' batch dimension: 0 in a varlen batch
  std::int64_t q_begin = 0, seqlen_q = 0;
  std::int64_t kv_begin = 0, seqlen_kv = 0;
};

inline bool is_varlen(const Arguments& a) { return a.cu_seqlens_q != nullptr; }
inline bool is_padded(const Arguments& a) {
  // The lengths of a paged cache do not describe padding.
  const bool pads_keys = a.seqlens_kv != nullptr || a.leftpad_kv != nullptr;
  return a.seqlens_q != nullptr || a.leftpad_q != nullptr || (pads_keys && !is_paged(a));
}
// The largest number of rows of K and V that a sequence can have.
inline std::int64_t rows_kv(const Arguments& a) {
  return is_paged(a) ? a.pages_per_sequence * a.k.shape[2] : a.k.shape[2];
}

// The rows of batch entry b that are no padding, clamped to its `rows` rows.
inline void used_rows(const std::int32_t* leftpad, const std::int32_t* seqlens, std::int64_t b,
                      std::int64_t rows, std::int64_t& begin, std::int64_t& length) {
  begin = leftpad == nullptr ? 0 : std::clamp<std::int64_t>(leftpad[b], 0, rows);
  length = rows - begin;
  if (seqlens != nullptr) length = std::clamp<std::int64_t>(seqlens[b], 0, length);
}

// Contents of cu_seqlens are clamped, never trusted: a span lies inside its tensor, has a
// nonnegative length, and is no longer than the caller's maximum. Spans share no token if the
// arrays do not decrease (validate_lengths).
inline Sequence sequence(const Arguments& a, std::int64_t b) {
  if (!is_varlen(a)) {
    Sequence s{b};
    used_rows(a.leftpad_q, a.seqlens_q, b, a.q.shape[2], s.q_begin, s.seqlen_q);
    used_rows(a.leftpad_kv, a.seqlens_kv, b, rows_kv(a), s.kv_begin, s.seqlen_kv);
    return s;
  }
  const auto span = [b](const std::int32_t* cu, std::int64_t tokens, std::int64_t max_len,
                        std::int64_t& begin, std::int64_t& length) {
    begin = std::clamp<std::int64_t>(cu[b], 0, tokens);
    const std::int64_t end = std::clamp<std::int64_t>(cu[b + 1], begin, tokens);
    length = std::min(end - begin, max_len);
  };
  Sequence s;
  span(a.cu_seqlens_q, a.q.shape[2], a.max_seqlen_q, s.q_begin, s.seqlen_q);
  span(a.cu_seqlens_kv, a.k.shape[2], a.max_seqlen_kv, s.kv_begin, s.seqlen_kv);
  return s;
}

inline std::int64_t sequence_count(const Arguments& a) {
  return is_varlen(a) ? a.sequences : a.q.shape[0];
}

}  // namespace octavo
