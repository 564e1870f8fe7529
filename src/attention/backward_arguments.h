// SPDX-License-Identifier: Apache-2.0
// The forward call whose gradients a backward call computes.
#pragma once

#include "octavo/octavo.hpp"

namespace octavo {

// `out` and `lse`, which a forward call writes, are inputs of a backward call. Nothing may write to
// them through the result.
inline Arguments forward_arguments(const BackwardArguments& a) {
  const auto writable = [](const ConstTensor& t) {
    return Tensor{const_cast<void*>(t.data), t.dtype, t.shape, t.stride};
  };
  Arguments forward;
  forward.q = a.q;
  forward.k = a.k;
  forward.v = a.v;
  forward.out = writable(a.out);
  forward.lse = writable(a.lse);
  forward.scale = a.scale;
  forward.cu_seqlens_q = a.cu_seqlens_q;
  forward.cu_seqlens_kv = a.cu_seqlens_kv;
  forward.sequences = a.sequences;
  forward.max_seqlen_q = a.max_seqlen_q;
  forward.max_seqlen_kv = a.max_seqlen_kv;
  forward.seqlens_q = a.seqlens_q;
  forward.seqlens_kv = a.seqlens_kv;
  forward.leftpad_q = a.leftpad_q;
  forward.leftpad_kv = a.leftpad_kv;
  forward.bias = a.bias;
  forward.mask = a.mask;
  forward.alibi_slopes = a.alibi_slopes;
  forward.alibi_batch_stride = a.alibi_batch_stride;
  forward.sinks = a.sinks;
  forward.block_mask = a.block_mask;
  return forward;
}

}  // namespace octavo
