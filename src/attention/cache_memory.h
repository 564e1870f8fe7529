// SPDX-License-Identifier: Apache-2.0
// The memory of a paged KV cache, on any device.
#pragma once

#include <cstdint>

#include "numeric/int4.h"
#include "octavo/octavo.hpp"

namespace octavo {

// K and V are (pages, heads, page_size, head_dim), or half as many bytes in int4.
struct CacheMemory {
  Tensor k{}, v{};
  float* k_scales = nullptr;  // of an 8-bit cache: (pages, heads, page_size)
  float* v_scales = nullptr;
  Int4Groups k_groups{}, v_groups{};  // of an int4 cache
};

// The sequences to which rows are appended.
struct CacheBatch {
  std::int32_t* page_table = nullptr;
  std::int64_t page_table_stride = 0;
  std::int32_t* lengths = nullptr;  // one per sequence, which appending adds to
  // On GPUs: the rows of each sequence for which the table has pages, and a counter that is 0
  // between launches.
  std::int32_t* capacities = nullptr;
  std::uint32_t* arrivals = nullptr;
};

}  // namespace octavo
