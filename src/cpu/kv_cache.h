// Writes and copies rows of a paged KV cache in host memory.
#pragma once

#include <cstdint>

#include "octavo/kv_cache.hpp"
#include "octavo/octavo.hpp"

namespace octavo::cpu {

// The memory of a cache: K and V are (pages, heads, page_size, head_dim).
struct CacheMemory {
  Tensor k{}, v{};
  float* k_scales = nullptr;  // of an 8-bit cache: (pages, heads, page_size)
  float* v_scales = nullptr;
};

// The sequences to which rows are appended.
struct CacheBatch {
  const std::int32_t* page_table = nullptr;
  std::int64_t page_table_stride = 0;
  std::int32_t* lengths = nullptr;  // one per sequence; append_rows() adds the tokens
};

// Copies the first `rows` rows of a page of every head to another page.
void copy_page_rows(const CacheMemory& cache, std::int32_t from, std::int32_t to,
                    std::int64_t rows);

// Writes k and v (batch, heads, tokens, head_dim) behind the last rows of the sequences. The page
// table has the pages for them.
void append_rows(const CacheMemory& cache, const CacheBatch& batch, const ConstTensor& k,
                 const ConstTensor& v, const Rotary& rotary);

}  // namespace octavo::cpu
