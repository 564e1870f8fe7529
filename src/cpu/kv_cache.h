// SPDX-License-Identifier: Apache-2.0
// Appends rows to a paged KV cache in host memory.
#pragma once

#include "attention/cache_memory.h"
#include "octavo/kv_cache.hpp"
#include "octavo/octavo.hpp"

namespace octavo::cpu {

// Writes k and v (batch, heads, tokens, head_dim) after the last rows of the sequences, and adds
// their number to the lengths. The page table must have pages for them.
void append_rows(const CacheMemory& cache, const CacheBatch& batch, const ConstTensor& k,
                 const ConstTensor& v, const Rotary& rotary);

}  // namespace octavo::cpu
