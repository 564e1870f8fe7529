// The sequences of a call: one per batch entry, or the spans of a varlen batch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "octavo/octavo.hpp"

namespace octavo {

// The rows of one sequence, for queries and for keys.
struct Sequence {
  std::int64_t batch = 0;  // index into the tensors' batch dimension: 0 in a varlen batch
  std::int64_t q_begin = 0, seqlen_q = 0;
  std::int64_t kv_begin = 0, seqlen_kv = 0;
};

inline bool is_varlen(const Arguments& a) { return a.cu_seqlens_q != nullptr; }

// Contents of cu_seqlens are clamped, never trusted: a span lies inside its tensor, has a
// nonnegative length, and is no longer than the caller's maximum. Spans share no token if the
// arrays do not decrease (validate_cu_seqlens).
inline Sequence sequence(const Arguments& a, std::int64_t b) {
  if (!is_varlen(a)) return {b, 0, a.q.shape[2], 0, a.k.shape[2]};
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
